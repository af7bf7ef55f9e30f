"""The controller's part: rounds of nodes and signs of sensors become an incident; nothing is done that was not asked for."""

from __future__ import annotations

from typing import Any

import pytest
from stories import Story, several_nodes

from robust_run.clock import SystemClock
from robust_run.health.types import Event as HealthEvent
from robust_run.launcher.control.frames import HEADER_BYTES, decode_from_agent, encode
from robust_run.launcher.controller.comparing.pacing import Pacing
from robust_run.launcher.core.diagnosis.hang_response import NO_MACHINE
from robust_run.launcher.model.actions import EndAttempt, RecordIncident
from robust_run.launcher.model.events import Event, Inquired
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Paces
from robust_run.tracer.pace.types import CpuShort, NodePace, RankPace, Reported

NODES = ("a", "b", "c", "d")
STEPS = 6


class Fleet:
    """Four nodes with two ranks each, which make six steps in a round: too few for ranks to be compared round by round."""

    def __init__(self, **policy: Any) -> None:
        self.story: Story = several_nodes(*NODES, **policy)
        self.told: list[Event] = []
        self.said: list[str] = []
        self.pacing = Pacing(
            state=self.story.state,
            clock=SystemClock(),
            ask=lambda _: False,
            tell=self.told.append,
            say=self.said.append,
        )
        self.own_ms = dict.fromkeys(NODES, 1000.0)
        self.held: dict[str, float] = {}
        self.step = 0

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.step += STEPS
            length_ms = max(self.own_ms.values()) + 200.0
            for at, node in enumerate(NODES):
                ranks = tuple(
                    RankPace(rank, "", self.step - STEPS + 1, (self.own_ms[node],) * STEPS, (length_ms,) * STEPS)
                    for rank in (2 * at, 2 * at + 1)
                )
                pace = NodePace(self.story.state.attempt, "", 0.0, 10.0, ranks)
                self.pacing.take(node, Paces(pace=pace, steps=self.step, cpu=CpuShort(self.held.get(node, 0.0))))

    @property
    def verdicts(self) -> list[Inquired]:
        return [event for event in self.told if isinstance(event, Inquired)]

    def incidents(self) -> list[RecordIncident]:
        done = [action for event in self.verdicts for action in self.story.happens(event)]
        return [action for action in done if isinstance(action, RecordIncident)]


def test_a_node_that_is_held_back_becomes_an_incident_with_its_cost_and_a_line_when_it_is_over() -> None:
    fleet = Fleet()
    fleet.rounds(25)
    fleet.own_ms["b"], fleet.held["b"] = 2000.0, 0.5
    fleet.rounds(5)
    (incident,) = fleet.incidents()
    assert (incident.action, incident.reason) == ("report", "--on-slow report")
    assert (incident.verdict.kind, incident.verdict.rule, incident.verdict.nodes) == ("slow", "slower_node", ("b",))
    assert "the CPU limit of their cgroup holds ranks back 50 % of the time" in incident.verdict.sentence
    assert incident.verdict.sentence.endswith("45% of throughput, 87.3 rank-hours a day")
    fleet.own_ms["b"], fleet.held = 1000.0, {}
    fleet.rounds(5)
    assert [line for line in fleet.said if line.startswith("steps take 1.2 s again")]
    assert len(fleet.verdicts) == 1


@pytest.mark.parametrize("held, ends", [(0.5, True), (0.0, False)])
def test_with_on_slow_evict_only_what_peers_and_a_sensor_say_is_acted_on(held: float, ends: bool) -> None:
    fleet = Fleet(on_slow="evict")
    fleet.story.joins("e")
    fleet.rounds(25)
    fleet.own_ms["b"], fleet.held["b"] = 2000.0, held
    fleet.rounds(5)
    (verdict,) = fleet.verdicts
    done = fleet.story.happens(verdict)
    assert any(isinstance(action, EndAttempt) for action in done) == ends
    assert [action.reason for action in done if isinstance(action, RecordIncident)] == ([] if ends else [NO_MACHINE])


def test_what_sensors_have_said_and_not_taken_back_is_named() -> None:
    fleet = Fleet()
    fleet.rounds(25)
    hot = HealthEvent(
        name="gpu.throttled", kind="alert", subject="GPU 0", detail="its clock is 900 of 1980 MHz", at_s=0.0
    )
    fleet.story.happens(HealthSeen(node="c", event=hot))
    fleet.own_ms["c"] = 1600.0
    fleet.rounds(5)
    (incident,) = fleet.incidents()
    assert incident.verdict.nodes == ("c",) and "on c, its clock is 900 of 1980 MHz" in incident.verdict.sentence


def test_what_a_script_reports_travels_with_the_rounds() -> None:
    ranks = (RankPace(0, "", 1, (1.0,), (2.0,), (0.5,)),)
    said = Paces(pace=NodePace(0, "", 0.0, 1.0, ranks), reported=Reported(5.0, None, 0.5))
    assert decode_from_agent(encode(said)[HEADER_BYTES:]) == said
