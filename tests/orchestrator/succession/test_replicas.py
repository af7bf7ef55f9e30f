"""Voters in one process: what leaves a leader waits for a majority; logs stay small; who was away catches up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError
from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.model.succession_words import Voter
from robust_run.orchestrator.nodes.dialing import Call
from robust_run.orchestrator.rules.queue_core import counts
from robust_run.orchestrator.succession.door import Door
from robust_run.orchestrator.succession.record import read_record
from robust_run.orchestrator.succession.replica import Hooks, Replica, Seat
from robust_run.orchestrator.succession.stores import LoggedQueue, Past
from robust_run.roles.queue_words import Done, Put, Took

SECRET = b"s" * 32
STUCK_S = 200.0


class Seen(Hooks):
    def __init__(self) -> None:
        self.said: list[str] = []

    def leads(self) -> None:
        self.said.append("leads")

    def stopped(self, why: str) -> None:
        self.said.append(f"stopped: {why}")

    def follows(self, leader: str) -> None:
        self.said.append(f"follows {leader}")


class Node:
    """One voter; it can be ended and started again on its files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder / name, name
        self.folder.mkdir()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.voter = Voter(name, "127.0.0.1", self.listener.getsockname()[1])
        self.said: list[str] = []

    async def start(self, voters: tuple[Voter, ...] = ()) -> Replica:
        self.door = Door(SECRET, self.listener)
        await self.door.open()
        self.hooks = Seen()
        seat = Seat(str(self.folder), "run", self.voter, Call(SECRET, None), voters)
        record = read_record(str(self.folder / f"{self.name}.json"))
        self.replica = self.door.replica = Replica(seat, SystemClock(), self.hooks, self.said.append, record)
        self.replica.begin()
        return self.replica

    def end(self) -> None:
        if self.door.replica is not None:
            self.door.replica = None
            self.replica.close()
            self.door.close()


async def until(condition: Callable[[], object]) -> None:
    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), STUCK_S)


def with_nodes(folder: Path, act: Callable[[Node, Node, Node], Awaitable[None]]) -> None:
    """Found a job of three voters; `act` begins with the first as leader."""

    async def run() -> None:
        nodes = [Node(folder, name) for name in ("a", "b", "c")]
        first = await nodes[0].start()
        voters = tuple(node.voter for node in nodes)
        try:
            first.append("journal", "head", b'{"schema":1}')
            first.record_voters(voters)
            first.found(voters)
            for node in nodes[1:]:
                await node.start(voters)
            await asyncio.wait_for(first.committed(), STUCK_S)
            await act(*nodes)
        finally:
            for node in nodes:
                node.end()
                node.listener.close()
            await asyncio.sleep(0.05)

    asyncio.run(run())


def test_what_is_said_waits_until_a_majority_has_it(tmp_path: Path) -> None:
    async def act(a: Node, b: Node, c: Node) -> None:
        said: list[str] = []
        a.replica.append("queue", "q", b"one")
        a.replica.after_commit(lambda: said.append("one"))
        assert said == [], "nobody else has it yet"
        await until(lambda: said)
        c.end()
        a.replica.append("queue", "q", b"two")
        a.replica.after_commit(lambda: said.append("two"))
        await until(lambda: said == ["one", "two"])
        b.end()
        a.replica.append("queue", "q", b"three")
        a.replica.after_commit(lambda: said.append("three"))
        await until(lambda: any(each.startswith("stopped") for each in a.hooks.said))
        assert said == ["one", "two"]
        with pytest.raises(PlatformError, match="does not lead the job any more"):
            a.replica.append("queue", "q", b"four")

    with_nodes(tmp_path, act)


def test_a_log_stays_small_and_a_voter_that_was_away_gets_what_still_counts(tmp_path: Path) -> None:
    async def act(a: Node, b: Node, c: Node) -> None:
        queue = LoggedQueue("q", QueueState(), a.replica, 0.0)
        a.replica.write_whole = queue.write_whole
        for node in (a, b, c):
            node.replica._large_bytes = 100_000
        c.end()
        for number in range(300):
            queue.tell(Put(key=str(number), generation=0, payload=b"." * 1000), 0.0)
            item = queue.tell(Took(consumer="r/0:0", count=1), 0.0).items[0]
            if number < 295:
                queue.tell(Done(consumer="r/0:0", numbers=(item.number,)), 0.0)
            if number % 20 == 0:
                await a.replica.committed()
        await a.replica.committed()
        a.replica._large_bytes = 0
        queue.tell(Put(key="last", generation=0, payload=b"x"), 0.0)
        await a.replica.committed()
        await until(lambda: a.replica.log.dropped and a.replica.log.size_bytes < 100_000)
        await c.start()
        queue.tell(Put(key="later", generation=0, payload=b"x"), 0.0)
        await until(lambda: c.replica.state.committed == a.replica.state.last)
        for node in (a, b, c):
            found = Past(node.replica.log.all()).queues["q"] if node is not a else queue.state
            assert (counts(found).leased, counts(found).waiting, counts(found).done) == (5, 2, 295)
        assert c.replica.log.dropped

    with_nodes(tmp_path, act)
