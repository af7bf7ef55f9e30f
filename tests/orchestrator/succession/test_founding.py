"""When others get a vote: with the job's first nodes, or as soon as there are three; and who hears of it later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from robust_run.clock import SystemClock
from robust_run.orchestrator.model.node_words import Founded, Several
from robust_run.orchestrator.model.succession_words import Entry, Voter
from robust_run.orchestrator.nodes.book import NodeBook
from robust_run.orchestrator.nodes.dialing import Call
from robust_run.orchestrator.succession.door import Door
from robust_run.orchestrator.succession.log import Log, begin_again
from robust_run.orchestrator.succession.post import Post
from robust_run.orchestrator.succession.record import read_record
from robust_run.orchestrator.succession.replica import Hooks, Replica, Seat
from robust_run.orchestrator.succession.stores import Past

SECRET = b"s" * 32


class Book:
    """Nodes that are here, and what they were told."""

    def __init__(self, *names: str) -> None:
        self.names, self.told = list(names), list[Founded]()

    def listening(self) -> dict[str, tuple[str, int]]:
        return dict.fromkeys(self.names, ("127.0.0.1", 1))

    def founded(self, founded: Founded) -> None:
        self.told.append(founded)

    def voters(self) -> list[tuple[str, ...]]:
        return [tuple(voter.name for voter in each.voters) for each in self.told]


def with_post(folder: Path, act: Callable[[Post, Replica], Awaitable[None]], nodes: int = 4) -> None:
    """Have node `a` lead alone, as at the beginning of a job."""

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        me, meeting = Voter("a", "127.0.0.1", 1), Several(host="a", port=1, nodes=nodes, name="a", secret=SECRET)
        path = str(folder / "a.json")
        replica = Replica(
            Seat(str(folder), "run", me, Call(SECRET, None)), SystemClock(), Hooks(), lambda _: None, read_record(path)
        )
        replica.begin()
        try:
            post = Post(
                replica, Door(SECRET, listener), str(folder), meeting, dict, lambda _: None, await Post.read(replica)
            )
            await act(post, replica)
        finally:
            replica.close()
            listener.close()

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 60)


def test_the_first_five_of_the_nodes_decide(tmp_path: Path) -> None:
    async def act(post: Post, replica: Replica) -> None:
        book = Book("b", "c", "a", "d", "e", "f")
        post.found(cast("NodeBook", book))
        assert book.voters() == [("a", "b", "c", "d", "e")]
        assert [each.name for each in (read_record(replica.path) or pytest.fail()).voters] == list("abcde")

    with_post(tmp_path, act)


def test_two_nodes_lead_alone_and_the_third_to_come_founds(tmp_path: Path) -> None:
    """`--nnodes 2:4`: a job of two has no majority without the other, so it must not need one."""

    async def act(post: Post, replica: Replica) -> None:
        book = Book("a", "b")
        post.found(cast("NodeBook", book))
        replica.append("journal", "", b"{}")
        await asyncio.wait_for(replica.committed(), 60)
        assert (book.told, replica.state.majority, read_record(replica.path)) == ([], 1, None)
        book.names.append("c")
        await until(lambda: book.told)
        assert (book.voters(), replica.state.majority) == ([("a", "b", "c")], 2)

    with_post(tmp_path, act)


def test_a_job_that_is_started_again_goes_on_alone_until_its_nodes_are_here(tmp_path: Path) -> None:
    """Requeued by Slurm, on other nodes: the log is one of those in the shared folder, votes and voters of then are void."""
    for name, entries in (("old-1", 3), ("old-2", 5), ("a", 2)):
        log = Log(str(tmp_path / f"{name}.log"), lambda _: None)
        log.put([Entry(index, 7, "queue", "q", b"%d" % index) for index in range(1, entries + 1)])
        log.close()
    begin_again(str(tmp_path), "a")
    assert [each.name for each in tmp_path.iterdir()] == ["a.log"]

    async def act(post: Post, replica: Replica) -> None:
        assert (replica.state.part, replica.state.term, replica.state.last, post.is_founding) == ("leads", 8, 5, True)
        assert replica.may_act()
        book = Book("a", "b", "c")
        post.found_later(cast("NodeBook", book), 4)
        await asyncio.sleep(0.2)
        assert book.told == [], "the fourth has not come"
        book.names.append("d")
        await until(lambda: book.told)
        assert book.voters() == [("a", "b", "c", "d")]

    with_post(tmp_path, act)


def test_who_comes_to_a_later_leader_hears_who_decides(tmp_path: Path) -> None:
    """Else a node that was started anew would look for the next leader where the first one was."""

    async def act(post: Post, replica: Replica) -> None:
        post.found(cast("NodeBook", Book("a", "b", "c")))
        later, book = Post(replica, post._door, "", post._meeting, dict, post._say, Past()), Book("a")
        later.goes_on(cast("NodeBook", book))
        assert book.voters() == [("a", "b", "c")]
        assert later.voters == ("b", "c")

    with_post(tmp_path, act)
