"""The live comparing of nodes, with the real child process and rows of a made-up fleet."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from stories import Story, several_nodes

from robust_run.clock import Clock
from robust_run.health.rules.types import Comparing
from robust_run.launcher.controller.comparing.fleet_comparison import STEPLESS_S, USUAL, FleetComparison
from robust_run.launcher.controller.comparing.node_roles import NodeRolesLook
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Paces
from robust_run.tracer.pace.types import NodePace
from robust_run.tracer.types import Scene

NAMES = [f"n{index}" for index in range(8)]
LIMIT_S = 60.0


class Hand(Clock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return 1e9 + self.now_s


async def lives(
    story: Story, cpu: Callable[[str, int], float], seconds: int, comparing: Comparing = USUAL, interval_s: float = 1.0
) -> list[HealthSeen]:
    """Let a fleet live for so many intervals, and return what is said of it."""
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    clock, said = Hand(), list[HealthSeen]()
    comparison = FleetComparison(story.state, clock, asyncio.get_running_loop(), said.append, comparing, interval_s)
    comparison.begin(0)
    chance = random.Random(5)
    for second in range(seconds):
        clock.now_s += interval_s
        for name in NAMES:
            while not comparison.take(
                name, (cpu(name, second) + chance.gauss(0, 0.5), 50 + chance.gauss(0, 0.2), 0, 1e6)
            ):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
    comparison.finish_rows()
    await until(lambda: not comparison.is_running)
    comparison.end()
    return said


async def until(condition: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at_s
        await asyncio.sleep(0.01)


def test_the_node_that_stands_out_is_named_and_nothing_is_done_to_it() -> None:
    story = several_nodes(*NAMES)
    said = asyncio.run(lives(story, lambda name, at: 15.0 if name == "n3" and at > 250 else 60.0, 420))
    assert [seen.node for seen in said] == ["n3"]
    assert said[0].event.name == "outlier.cpu_percent"
    (rule,) = story.happens(said[0])
    assert rule.rung == "report"
    assert not story.state.evicted
    assert list(story.state.health.active) == [("n3", "outlier.cpu_percent", "")]


def test_a_node_that_is_like_its_peers_again_is_told_so() -> None:
    story = several_nodes(*NAMES)
    named, over = asyncio.run(
        lives(story, lambda name, at: 15.0 if name == "n3" and 100 < at < 150 else 60.0, 220, Comparing(settle_s=60))
    )
    assert [(each.node, each.event.name, each.event.kind) for each in (named, over)] == [
        ("n3", "outlier.cpu_percent", "alert"),
        ("n3", "outlier.cpu_percent", "clear"),
    ]
    for each in (named, over):
        story.happens(each)
    assert not story.state.health.active


def test_a_fleet_in_which_all_do_the_same_is_left_alone() -> None:
    story = several_nodes(*NAMES)
    assert asyncio.run(lives(story, lambda name, at: 60.0 if at < 250 else 20.0, 420)) == []


@pytest.mark.parametrize("interval_s", [0.2, 5.0])
def test_heartbeats_may_be_slower_or_faster_and_learning_shorter(interval_s: float) -> None:
    story = several_nodes(*NAMES)
    comparing = Comparing(settle_s=30 * interval_s, hold=0.2 * interval_s)
    said = asyncio.run(
        lives(story, lambda name, at: 15.0 if name == "n3" and at > 40 else 60.0, 70, comparing, interval_s)
    )
    assert [seen.node for seen in said] == ["n3"]


def test_three_nodes_whose_heartbeats_come_early_and_late_are_compared_all_the_same() -> None:
    """Of three, a reading in which one is missing says nothing of any: were it of a second, this one would take 22 s."""
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    story, clock, said, chance = several_nodes("a", "b", "c"), Hand(), list[HealthSeen](), random.Random(7)
    beats = [(1000 + second + chance.uniform(-0.3, 0.3), name) for second in range(300) for name in "abc"]

    async def live() -> None:
        comparison = FleetComparison(story.state, clock, asyncio.get_running_loop(), said.append)
        comparison.begin(0)
        for clock.now_s, name in sorted(beats):
            cpu = 15.0 if name == "b" and clock.now_s > 1200 else 60.0
            while not comparison.take(name, (cpu + chance.gauss(0, 0.5), 50 + chance.gauss(0, 0.2), 0, 1e6)):
                await asyncio.sleep(0.01)
        comparison.finish_rows()
        await until(lambda: not comparison.is_running)

    asyncio.run(live())
    (seen,) = said
    assert seen.node == "b"
    assert int(seen.event.detail.partition(", for ")[2].partition(" s now")[0]) < 20, seen.event.detail


Scenario = Callable[[FleetComparison, Hand, list[HealthSeen]], Awaitable[None]]


def play(scenario: Scenario, comparing: Comparing = USUAL) -> None:
    """Play with an outlook on four nodes that train."""
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    story, clock, said = several_nodes("a", "b", "c", "d"), Hand(), list[HealthSeen]()

    async def alone() -> None:
        comparison = FleetComparison(story.state, clock, asyncio.get_running_loop(), said.append, comparing)
        try:
            await scenario(comparison, clock, said)
        finally:
            comparison.end()

    asyncio.run(alone())


def test_comparing_that_ends_by_itself_is_told_with_its_last_words() -> None:
    async def scenario(comparison: FleetComparison, _: Hand, said: list[HealthSeen]) -> None:
        comparison.begin(0)
        await until(lambda: bool(said))
        (seen,) = said
        assert (seen.event.name, seen.event.kind, seen.node) == ("outlier.ended", "note", "a")
        assert "--settle" in seen.event.detail
        assert "out of range" in seen.event.detail

    play(scenario, Comparing(settle_s=1e9))


def test_a_program_whose_steps_nobody_counts_is_compared_after_a_while() -> None:
    async def scenario(comparison: FleetComparison, clock: Hand, _: list[HealthSeen]) -> None:
        comparison.take("a", (1.0,) * 4)
        clock.now_s += STEPLESS_S / 2
        comparison.take("a", (1.0,) * 4)
        assert not comparison.is_running
        clock.now_s += STEPLESS_S
        comparison.take("a", (1.0,) * 4)
        assert comparison.is_running

    play(scenario)


def test_comparing_may_be_switched_off_and_an_attempt_that_is_over_is_not_compared() -> None:
    async def scenario(comparison: FleetComparison, _: Hand, __: list[HealthSeen]) -> None:
        comparison.begin(0)
        assert not comparison.is_running

    play(scenario, Comparing(on=False))

    async def other(comparison: FleetComparison, _: Hand, __: list[HealthSeen]) -> None:
        comparison.begin(1)
        assert not comparison.is_running

    play(other)


def test_a_controller_that_takes_over_compares_the_attempt_that_runs() -> None:
    """The first step was told to the one before it; what nodes say of their steps comes again and again."""
    story = several_nodes("a", "b", "c", "d")
    say: Any = SimpleNamespace(say=lambda _: None, send=lambda *_: None)
    controller = Controller(
        policy=story.policy,
        state=story.state,
        book=say,
        journal=say,
        clock=Hand(),
        outbox=say,
        later=lambda *_: say,
        on_finish=lambda _: None,
    )
    begun: list[int] = []
    comparison: Any = SimpleNamespace(begin=begun.append, hear_steps=lambda *_: None)
    controller.comparison = comparison
    controller.see("a", Paces(pace=NodePace(0, "", 0.0, 1.0, ())))
    assert begun == []
    controller.see("a", Paces(pace=NodePace(0, "", 0.0, 1.0, ()), steps=5, since_step_s=0.1))
    assert begun == [0]


def test_two_nodes_are_no_fleet() -> None:
    story = several_nodes("a", "b")

    async def live() -> bool:
        comparison = FleetComparison(story.state, Hand(), asyncio.get_running_loop(), lambda _: None)
        comparison.begin(0)
        return comparison.is_running

    assert asyncio.run(live()) is False


async def two_stages(
    story: Story, find: Callable[[Callable[[int, Mapping[str, str]], None]], None]
) -> list[HealthSeen]:
    """n4 to n7 begin to do other work at 120; at the same time n3's clocks fall. Live until n3 is said to stay apart."""
    clock, said, chance = Hand(), list[HealthSeen](), random.Random(3)
    comparison = FleetComparison(
        story.state, clock, asyncio.get_running_loop(), said.append, Comparing(stays_s=30.0, settle_s=60.0), look=find
    )
    comparison.begin(0)
    for second in range(3000):
        clock.now_s += 1.0
        comparison.hear_steps(0, second + 1)
        for at, name in enumerate(NAMES):
            cpu = 20.0 if at >= 4 and second > 120 else 60.0
            mhz = 1200.0 if at == 3 and second > 120 else 1980.0
            usage = (cpu + chance.gauss(0, 0.5), 50.0, 0.0, 1e6, 80.0, 99.0, 60.0, mhz + chance.gauss(0, 3))
            while not comparison.take(name, usage):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        if any(seen.event.name.startswith("outlier.stays") for seen in said):
            break
    comparison.end()
    return said


def test_nodes_of_another_stage_are_no_peers_and_who_stays_apart_is_told_with_its_sign() -> None:
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    roles = {name: f"stage {at // 4}" for at, name in enumerate(NAMES)}
    story = several_nodes(*NAMES, on_outlier="evict")
    story.joins("spare")
    first, *_, stays = asyncio.run(two_stages(story, lambda then: then(0, roles)))
    assert (first.node, first.event.name) == ("n3", "outlier.gpu_sm_clock_mhz")
    assert (stays.node, stays.event.name, stays.event.value) == (
        "n3",
        "outlier.stays.gpu_sm_clock_mhz",
        pytest.approx(1200, abs=20),
    )
    story.happens(stays)
    assert set(story.state.evicted) == {"n3"}


def test_where_roles_are_not_known_nothing_is_acted_on() -> None:
    """Half of the nodes begin to differ from the other half, and that is a crowd; who stays apart is told."""
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    story = several_nodes(*NAMES, on_outlier="evict")
    story.joins("spare")
    *_, stays = asyncio.run(two_stages(story, lambda then: None))
    assert stays.node == "n3" and "roles of nodes are not known" in stays.event.detail
    story.happens(stays)
    assert not story.state.evicted and story.state.phase == "running"


def test_the_roles_of_nodes_are_looked_for_once_more_if_calls_are_not_seen_yet() -> None:
    story, timers = several_nodes("a", "b", "c"), list[Callable[[], None]]()
    scene = Scene(at_s=0.0, at_unix_s=0.0, attempt=0, world_size=6, ranks=())
    asked, told = list[int](), list[tuple[int, Mapping[str, str]]]()

    def ask(then: Callable[[Scene], None], *, samples: int) -> bool:
        asked.append(samples)
        then(scene)
        return True

    NodeRolesLook(story.state, ask, lambda _, do: timers.append(do)).look(lambda *found: told.append(found))
    timers.pop()()
    assert not told, "no rank had called anything"
    timers.pop()()
    assert told == [(0, {})] and asked == [0, 0] and not timers
