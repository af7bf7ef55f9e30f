"""An attention member's connections: experts that are killed, stand still or are somebody else. No job, one event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "serving"))

import decoder
from expert import Server
from links import Experts
from router import Router, held

from robust_run.roles import Member

KEY, LIMIT_S = bytes(range(32)), 60.0
ROWS = np.arange(2 * decoder.WIDTH).reshape(2, -1) / 64
PATIENCE_S = 0.05
STARTED: list[Expert] = []
"""Experts of a test, which are killed when it is over."""


class Expert(Server):
    """An expert member that can be killed, and stands still after it has greeted until it is told to go on."""

    def __init__(
        self, index: int, copies: int = 1, *, stands_still: bool = False, key: bytes = KEY, members: int = 2
    ) -> None:
        self.index, self.worked = index, 0
        super().__init__(f"expert/{index}", key, decoder.ExpertPart(held(index, decoder.EXPERTS, members, copies)))
        self.goes_on = asyncio.Event()
        if not stands_still:
            self.goes_on.set()
        self.connections: list[asyncio.StreamWriter] = []

    async def start(self, generation: int = 1) -> Member:
        STARTED.append(self)
        self._listener, port = await self.listen("127.0.0.1")
        return member(self.index, port, generation)

    def kill(self) -> None:
        self._listener.close()
        for writer in self.connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        await super()._serve(reader, writer)

    async def _greet(self, *args: Any) -> Any:
        found = await super()._greet(*args)
        await self.goes_on.wait()
        return found

    def _work(self, message: Any) -> Any:
        self.worked += 1
        return super()._work(message)


def member(index: int, port: int, generation: int = 1) -> Member:
    address = f"127.0.0.1:{port}"
    return Member(role="expert", index=index, generation=generation, state="running", ready=True, addresses=(address,))


class Attention(Experts):
    """As in an attention member, with what it has said."""

    def __init__(self, copies: int = 1) -> None:
        self.said: list[str] = []
        super().__init__("attention/0", KEY, Router(2, copies, PATIENCE_S), self.said.append)

    async def until_said(self, words: str) -> None:
        while not any(words in line for line in self.said):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def attention(copies: int = 1) -> AsyncIterator[Attention]:
    found = Attention(copies)
    running = asyncio.ensure_future(found.run(2))
    try:
        yield found
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def run(story: Callable[[], Any]) -> None:
    async def limited() -> None:
        try:
            await asyncio.wait_for(story(), LIMIT_S)
        finally:
            while STARTED:
                STARTED.pop().kill()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for each in others:  # what served their connections
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(limited())


def wanted(*experts: int) -> dict[int, bytes]:
    part = decoder.ExpertPart(experts)
    return {expert: part.compute(1, expert, ROWS).tobytes() for expert in experts}


async def asked(links: Attention, *experts: int) -> int:
    """Have rows worked on, and compare; return how often some were sent again."""
    made, again = await links.ask(1, dict.fromkeys(experts, ROWS))
    assert {expert: rows.tobytes() for expert, rows in made.items()} == wanted(*experts)
    return again


def test_an_expert_that_is_killed_is_waited_for_and_asked_again_under_its_new_address() -> None:
    async def story() -> None:
        first, other = Expert(0, stands_still=True), Expert(1)
        async with attention() as links:
            await links.know([await first.start(), await other.start()])
            answer = asyncio.ensure_future(asked(links, 0, 1, 4))
            while not first.connections or not other.worked:
                await asyncio.sleep(0.01)
            first.kill()
            await links.until_said("expert/0 is lost")
            assert not answer.done()
            second = Expert(0)
            await links.know([await second.start(generation=2)])
            assert await answer == 2, "both parts of the one that was lost"
            assert (first.worked, second.worked, other.worked) == (0, 1, 1)
            await links.until_said("expert/0 is back after")

    run(story)


def test_where_another_holds_the_same_nobody_waits() -> None:
    async def story() -> None:
        experts = [Expert(0, 2, stands_still=True), Expert(1, 2)]
        async with attention(copies=2) as links:
            await links.know([await each.start() for each in experts])
            while not all(each.connections for each in experts):
                await asyncio.sleep(0.01)
            answer = asyncio.ensure_future(asked(links, *range(8)))
            experts[0].kill()
            await answer
            assert await asked(links, 0, 1) == 0, "it is not asked any more"
            assert experts[0].worked == 0

    run(story)


def test_one_that_stands_still_is_not_waited_for_where_another_holds_the_same_and_it_is_left_alone() -> None:
    async def story() -> None:
        experts = [Expert(0, 2, stands_still=True), Expert(1, 2)]
        async with attention(copies=2) as links:
            await links.know([await each.start() for each in experts])
            while len(links._links) < 2:
                await asyncio.sleep(0.01)
            assert await asked(links, *range(8)) >= 4, "what it has was given to the other"
            await asked(links, *range(8))
            assert experts[0].worked == 0
            assert links.said == [], "nobody is lost"
            experts[0].goes_on.set()
            while not experts[0].worked:
                await asyncio.sleep(0.01)
            before = experts[0].worked
            while experts[0].worked == before:
                await asked(links, *range(8))
            assert len(experts[0].connections) == 1

    run(story)


def test_one_that_stands_still_and_is_the_only_one_is_waited_for() -> None:
    async def story() -> None:
        experts = [Expert(0, stands_still=True), Expert(1)]
        async with attention() as links:
            await links.know([await each.start() for each in experts])
            answer = asyncio.ensure_future(asked(links, 0, 1))
            while not experts[1].worked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(4 * PATIENCE_S)
            assert not answer.done()
            experts[0].goes_on.set()
            assert await answer == 0

    run(story)


def test_another_member_or_another_job_at_the_address_is_given_nothing() -> None:
    async def story() -> None:
        for stranger in (Expert(1), Expert(0, key=bytes(32))):
            right, other = Expert(0), Expert(1)
            async with attention() as links:
                await links.know(
                    [member(0, (await stranger.start()).addresses[0].rpartition(":")[2]), await other.start()]
                )  # type: ignore[arg-type]
                answer = asyncio.ensure_future(asked(links, 0, 1))
                await links.until_said("expert/0 is lost")
                await links.know([await right.start(generation=2)])
                assert await answer == 0
                assert (stranger.worked, right.worked) == (0, 1)

    run(story)


def test_a_silent_stranger_at_an_old_address_holds_nobody_up() -> None:
    async def story() -> None:
        came = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            while await reader.read(1000):
                pass
            writer.close()

        stranger = await asyncio.start_server(silent, "127.0.0.1", 0)
        right, other = Expert(0), Expert(1)
        async with attention() as links:
            await links.know([member(0, stranger.sockets[0].getsockname()[1]), await other.start()])
            await came.wait()
            await links.know([await right.start(generation=2)])
            assert await asked(links, 0, 1) == 0
            assert "expert/0 is lost" in links.said[0]
        stranger.close()

    run(story)


def test_an_address_that_is_none_is_an_address_to_wait_for() -> None:
    async def story() -> None:
        right, other = Expert(0), Expert(1)
        async with attention() as links:
            await links.know([member(0, "nowhere"), await other.start()])  # type: ignore[arg-type]
            await links.until_said("expert/0 is lost")
            await links.know([await right.start(generation=2)])
            assert await asked(links, 0, 1) == 0

    run(story)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"", bytes(32), bytes(32 + 400), b"\xff" * 64])
def test_a_stranger_hears_a_nonce_and_nothing_else(said: bytes) -> None:
    async def story() -> None:
        expert = Expert(0)
        address = (await expert.start()).addresses[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(said)
        writer.write_eof()
        heard = b""
        while len(heard) <= 32 and (data := await _received(reader)):
            heard += data
        assert len(heard) <= 32
        writer.close()

    run(story)


async def _received(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1000)
    except ConnectionError:
        return b""


def test_an_expert_that_listens_everywhere_has_one_port() -> None:
    async def story() -> None:
        expert, other = Expert(0), Expert(1)
        STARTED.append(expert)
        expert._listener, port = await expert.listen("")
        assert {each.getsockname()[1] for each in expert._listener.sockets} == {port}
        async with attention() as links:
            await links.know([member(0, port), await other.start()])
            assert await asked(links, 0, 1) == 0

    run(story)


def test_members_that_were_told_different_layouts_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        experts = [Expert(0, 1), Expert(1, 1)]
        async with attention(copies=2) as links:
            await links.know([await each.start() for each in experts])
            answer = asyncio.ensure_future(asked(links, *range(8)))
            await links.until_said("is lost")
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    run(story)
    assert "is not held here; roles were given other --copies" in capsys.readouterr().out
