"""The live comparing of nodes, with the real child process and rows of a made-up fleet."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from stories import Story, several_nodes

from robust_run.clock import Clock
from robust_run.launcher.controller.outlook import Outlook
from robust_run.launcher.health_events import HealthSeen

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


async def lives(story: Story, cpu: Callable[[str, int], float], seconds: int) -> list[HealthSeen]:
    """Let a fleet live for so many seconds, and return what is said of it."""
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    clock, said = Hand(), list[HealthSeen]()
    outlook = Outlook(story.state, clock, asyncio.get_running_loop(), said.append)
    outlook.begin(0)
    chance = random.Random(5)
    for second in range(seconds):
        clock.now_s += 1
        for name in NAMES:
            while not outlook.take(name, (cpu(name, second) + chance.gauss(0, 0.5), 50 + chance.gauss(0, 0.2), 0, 1e6)):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
    outlook.finish_rows()
    give_up_at_s = time.monotonic() + LIMIT_S
    while outlook.is_running and time.monotonic() < give_up_at_s:
        await asyncio.sleep(0.01)
    outlook.end()
    return said


def test_the_node_that_stands_out_is_named_and_nothing_is_done_to_it() -> None:
    story = several_nodes(*NAMES)
    said = asyncio.run(lives(story, lambda name, at: 15.0 if name == "n3" and at > 250 else 60.0, 420))
    assert [seen.node for seen in said] == ["n3"]
    assert said[0].event.name == "outlier.cpu_percent"
    (rule,) = story.happens(said[0])
    assert rule.rung == "report"
    assert not story.state.evicted
    assert list(story.state.health.active) == [("n3", "outlier.cpu_percent", "")]


def test_a_fleet_in_which_all_do_the_same_is_left_alone() -> None:
    story = several_nodes(*NAMES)
    assert asyncio.run(lives(story, lambda name, at: 60.0 if at < 250 else 20.0, 420)) == []


def test_two_nodes_are_no_fleet() -> None:
    story = several_nodes("a", "b")

    async def live() -> bool:
        outlook = Outlook(story.state, Hand(), asyncio.get_running_loop(), lambda _: None)
        outlook.begin(0)
        return outlook.is_running

    assert asyncio.run(live()) is False
