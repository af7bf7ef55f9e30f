"""Agents that nothing happens to are told as one batch: the core decides as if each had spoken by itself, with all its ranks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from robust_run.launcher.model.actions import Say
from robust_run.launcher.model.events import AttemptEnded
from robust_run.launcher.model.node_events import NodeLost
from robust_run.planning.course import Course
from robust_run.planning.mix import DEFAULT, scaled
from robust_run.planning.simulated.world import World
from robust_run.planning.words import FaultKind, Mix, Plan, Spread, Times

SLOW_ENDS = Times(end=Spread(300.0, 900.0), repair=Spread(3600.0, 7200.0), person=Spread(600.0, 900.0))
LOST = FaultKind(shows="lost", per_1000_node_days=900.0, detect=Spread(4.0, 5.0), stays=0.3)
CRASH = FaultKind(shows="crash", trouble="cuda", per_1000_node_days=900.0, stays=0.5)


def lived(plan: Plan, seed: int, *, is_single: bool) -> tuple[Course, list[tuple[float, Any]], list[tuple[float, Any]]]:
    """Return the course, what the core decided and when, and what it was told."""
    decided: list[tuple[float, Any]] = []
    told: list[tuple[float, Any]] = []
    world = World(plan, seed, is_single=is_single)

    def note(now_s: float, event: Any, actions: tuple[Any, ...]) -> None:
        told.append((now_s, event))
        decided.extend((now_s, action) for action in actions if not isinstance(action, Say))

    world.told = note
    return world.run(), decided, told


def without_counts(course: Course) -> Course:
    return msgspec.structs.replace(course, events=0)


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_leads_to_the_same_decisions_at_the_same_times(seed: int) -> None:
    plan = Plan(nodes=6, gpus_per_node=2, standby=2, days=8.0, mix=scaled(DEFAULT, 800.0))
    single, decided, told = lived(plan, seed, is_single=True)
    batch, decided_in_batch, told_in_batch = lived(plan, seed, is_single=False)
    assert decided_in_batch == decided
    assert without_counts(batch) == without_counts(single)
    assert sum(single.faults.values()) >= 10
    assert len(told_in_batch) < len(told)


def test_so_it_is_where_nodes_are_lost_while_their_attempt_is_being_ended() -> None:
    mix = Mix(faults={"lost": LOST, "crash": CRASH})
    plan = Plan(nodes=6, gpus_per_node=2, standby=6, days=4.0, mix=mix, times=SLOW_ENDS)
    after_its_end = before_its_end = 0
    for seed in range(6):
        single, decided, told = lived(plan, seed, is_single=True)
        batch, decided_in_batch, _ = lived(plan, seed, is_single=False)
        assert decided_in_batch == decided
        assert without_counts(batch) == without_counts(single)
        ended: set[str] = set()
        for _, event in told:
            if isinstance(event, AttemptEnded):
                ended.add(event.node)
            elif isinstance(event, NodeLost):
                after_its_end += event.node in ended
                before_its_end += event.node not in ended
    assert after_its_end
    assert before_its_end
