"""What an agent makes of the traces of its ranks: who waits, when to look at all ranks, and what it tells of a stall."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracer.nccl.conftest import compiler, driver, plugin  # noqa: F401 - fixtures
from tracer.nccl.playing import Rank

from robust_run.harmless import Harmless
from robust_run.launcher.agent.nccl.watch import PAUSE_S, NcclWatch
from robust_run.launcher.model.events import HangSuspected, NodeEvent
from robust_run.tracer.nccl.sampling import FEWEST, WINDOW_S
from robust_run.tracer.plugin import layout, reader
from robust_run.tracer.plugin.waiting import TICK_S


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


class Node:
    """Two ranks of a node, and an agent's eyes on them."""

    def __init__(self, ranks: list[Rank], clock: Clock) -> None:
        self.ranks, self.clock = ranks, clock
        self.reported: list[NodeEvent] = []
        self.complaints: list[str] = []
        self.done = 0
        for number, rank in enumerate(ranks):
            rank.play(f"comm 0 dp_{number} {70 + number} 2 4 0")
        self.watch = NcclWatch(
            attempt=3,
            node="here",
            world_size=8,
            paths={number: rank.path for number, rank in enumerate(ranks)},
            after_s=5.0,
            clock=clock,
            report=self.reported.append,
            harmless=Harmless("looking", self.complaints.append),
        )
        for number in range(len(ranks)):
            self.watch.look(number, 0.0)

    def operation(self, rank: int, number: int, *, whole: bool = True) -> None:
        """An operation of eight steps; not whole: half of it."""
        lines = [f"coll 0 1 {number} AllReduce 4096 ncclFloat32 0", "op 0 2 1 0 0 1 8 1", "stop 1"]
        lines += ["steps 0 2 0 8 1", "stop 2"] if whole else ["steps 0 2 0 4 1"]
        self.ranks[rank].play(lines)

    def half(self, rank: int) -> float:
        """Have an operation in flight that is half done; return when that was, with the clock of events a tick further."""
        self.operation(rank, 0, whole=False)
        seen = reader.glance(self.ranks[rank].path)
        assert seen is not None and seen.event_s is not None
        while time.monotonic() < seen.event_s + TICK_S:
            time.sleep(0.001)
        return seen.event_s

    def window(self, operations: int) -> None:
        """Ten seconds in which both ranks complete so many operations."""
        for rank in range(len(self.ranks)):
            for number in range(operations):
                self.operation(rank, self.done + number)
        self.done += operations
        self.clock.now_s += WINDOW_S
        for rank in range(len(self.ranks)):
            self.watch.look(rank, self.clock.now_s)
        self.watch.sample()

    @property
    def asked(self) -> list[HangSuspected]:
        return [event for event in self.reported if isinstance(event, HangSuspected)]


@pytest.fixture
def node(driver: str, plugin: str, tmp_path: Path) -> Iterator[Node]:  # noqa: F811
    ranks = []
    for number in range(2):
        path = str(tmp_path / f"{number}.nccl")
        layout.create(path)
        ranks.append(Rank(driver, plugin, 6, path))
    made = Node(ranks, Clock())
    yield made
    made.watch.stop()
    for rank in ranks:
        rank.close()
    assert made.complaints == []


def test_throughput_that_halves_asks_for_a_look_at_all(node: Node) -> None:
    for _ in range(FEWEST + 2):
        node.window(8)
    assert node.asked == []
    node.window(2)
    (asked,) = node.asked
    assert (asked.attempt, asked.node, asked.rank, asked.after_s) == (3, "here", 0, 5.0)
    assert "where" in asked.reason and "usual" in asked.reason


def test_it_is_not_asked_again_and_again(node: Node) -> None:
    for _ in range(FEWEST + 2):
        node.window(16)
    for _ in range(int(PAUSE_S / WINDOW_S)):
        node.window(1)
    assert len(node.asked) == 1


def test_that_nothing_is_completed_is_news_where_something_always_was(node: Node) -> None:
    for _ in range(FEWEST + 1):
        node.window(4)
    node.operation(1, 999, whole=False)
    node.window(0)
    (asked,) = node.asked
    assert (asked.rank, asked.reason) == (1, "no operation was completed in 10 s while some are in flight")


def test_in_a_job_of_long_steps_it_is_no_news(node: Node) -> None:
    node.operation(1, 0, whole=False)
    for _ in range(12):
        node.window(0)
    assert node.asked == []


def test_where_nothing_is_in_flight_nothing_is_asked(node: Node) -> None:
    """A checkpoint is written."""
    for _ in range(FEWEST + 1):
        node.window(4)
    for _ in range(12):
        node.window(0)
    assert node.asked == []


def test_who_waits_and_how_it_came_about(node: Node) -> None:
    node.operation(0, 0)
    event_s = node.half(1)
    before, since_s = node.watch.look(0, event_s + 3.0)
    assert (before > 0, since_s) == (True, None)
    events, since_s = node.watch.look(1, event_s + 3.0)
    assert (events, since_s) == (round(event_s * 1e9), pytest.approx(event_s))
    (note,) = node.watch.notes(1)
    assert (note.done, node.watch.notes(0)) == (4, ())


def test_while_a_stall_is_forming_states_are_noted_ten_times_a_second(node: Node) -> None:
    event_s = node.half(1)

    async def look() -> None:
        node.watch.start(asyncio.get_running_loop())
        node.clock.now_s = event_s + 2.0
        node.watch.look(1, node.clock.now_s)
        node.ranks[1].play("steps 0 2 4 6 1")
        while len(node.watch.notes(1)) < 2:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(look(), 30))
    assert [note.done for note in node.watch.notes(1)] == [4, 6]
