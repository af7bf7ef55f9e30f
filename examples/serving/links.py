"""An attention member's connections to all expert members. One event loop; what is sent where, `router` decides."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from exact import Array
from router import Part, Router, Sends
from wire import NONCE_BYTES, Frames, WireError
from words import Greeting, Made, Work, bytes_of, rows_of

from robust_run.roles import Member

PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Between two tries to connect: it grows with each connection to one start of a member that goes wrong."""
GREETING_S = 10.0
LOOK_S = 0.1
READ_BYTES = 1 << 18


class Ticket:
    """Rows that one layer sent to experts, and what has come of them."""

    def __init__(self, layer: int, rows: dict[int, Array]) -> None:
        self.layer, self.rows = layer, rows
        self.made: dict[int, Array] = {}
        self.is_done = asyncio.Event()


class Experts:
    """The expert members, as one attention member reaches them."""

    def __init__(self, me: str, key: bytes, router: Router, say: Callable[[str], None] = lambda _: None) -> None:
        """`me`: name of this member; `key`: what all workers of the job share."""
        self._me, self._key, self._router, self._say = me, key, router, say
        self._members: dict[int, Member] = {}
        self._moved = asyncio.Condition()
        self._calls: dict[int, tuple[int, asyncio.StreamWriter]] = {}
        """Connections by member, greeted or not, and to which generation of it."""
        self._links: dict[int, tuple[asyncio.StreamWriter, Frames]] = {}
        """Those that are greeted."""
        self._numbers = itertools.count(1)
        self._tickets: dict[int, Ticket] = {}
        self._gone_s: dict[int, float] = {}
        """Since when a member is away that was here."""

    async def ask(self, layer: int, rows: dict[int, Array]) -> tuple[dict[int, Array], int]:
        """Have experts work on rows; return what they made, and how often some were asked again. Waits as long as it takes."""
        number, ticket = next(self._numbers), Ticket(layer, rows)
        self._tickets[number] = ticket
        try:
            self._send(self._router.ask(number, rows, _now_s()))
            await ticket.is_done.wait()
        finally:
            del self._tickets[number]
            again = self._router.close(number)
        return ticket.made, again

    async def run(self, members: int) -> None:
        """Keep connections to so many members, for ever."""
        await asyncio.gather(self._look(), *(self._keep(index) for index in range(members)))

    async def know(self, members: Sequence[Member]) -> None:
        """Take in where members are now. A connection to an earlier start of one is cut."""
        async with self._moved:
            for member in members:
                self._members[member.index] = member
                generation, writer = self._calls.get(member.index, (member.generation, None))
                if writer is not None and generation != member.generation:
                    writer.transport.abort()
            self._moved.notify_all()

    async def _keep(self, index: int) -> None:
        pause_s, generation = PAUSE_S, 0
        while True:
            async with self._moved:
                await self._moved.wait_for(lambda: bool(_address(self._members.get(index))))
                member = self._members[index]
            if member.generation != generation:
                pause_s, generation = PAUSE_S, member.generation
            try:
                await self._talk(member)
            except ConnectionRefusedError:
                pass  # it has ended, and will tell a new address
            except (OSError, EOFError, ValueError, WireError, asyncio.TimeoutError) as error:
                self._say(f"{member.name} is lost: {str(error) or type(error).__name__}")
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _talk(self, member: Member) -> None:
        """Connect, and take in answers until the connection is lost. Raises OSError, EOFError, ValueError, WireError."""
        host, _, port = _address(member).rpartition(":")
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), GREETING_S)
        self._calls[member.index] = member.generation, writer
        try:
            frames, messages = await asyncio.wait_for(self._greet(member, reader, writer), GREETING_S)
            self._links[member.index] = writer, frames
            if member.index in self._gone_s:
                self._say(f"{member.name} is back after {_now_s() - self._gone_s.pop(member.index):.2f} s")
            self._send(self._router.came(member.index, _now_s()))
            while True:
                for message in messages:
                    self._take(member.index, message)
                messages = list(frames.feed(await _some(reader)))
        finally:
            del self._calls[member.index]
            if self._links.pop(member.index, None) is not None:
                self._gone_s[member.index] = _now_s()
                self._send(self._router.went(member.index, _now_s()))
            writer.transport.abort()  # closing would wait for one that does not read
            with suppress(OSError):
                await writer.wait_closed()

    async def _greet(
        self, member: Member, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Frames, list[Greeting | Work | Made]]:
        """Find out that who answers belongs to the job, and is that member: another may have its port by now."""
        nonce = os.urandom(NONCE_BYTES)
        writer.write(nonce)
        frames = Frames(self._key, nonce + await reader.readexactly(NONCE_BYTES), is_expert=False)
        writer.write(frames.frame(Greeting(self._me)))
        messages: list[Greeting | Work | Made] = []
        while not messages:
            messages += frames.feed(await _some(reader))
        greeting = messages.pop(0)
        if not isinstance(greeting, Greeting) or greeting.member != member.name:
            raise WireError(f"who answers is not {member.name}")
        return frames, messages

    def _take(self, index: int, message: Greeting | Work | Made) -> None:
        if not isinstance(message, Made):
            raise WireError(f"an expert member sent a {type(message).__name__}")
        ticket = self._tickets.get(message.ticket)  # None: others were faster
        for expert, data in message.rows.items():
            if ticket is not None and expert in ticket.rows:
                rows = rows_of(data)
                if rows.shape != ticket.rows[expert].shape:
                    raise WireError(f"expert {expert} made {rows.shape} of {ticket.rows[expert].shape}")
                ticket.made[expert] = rows  # a second answer is the same
            self._router.answered(index, Part(message.ticket, expert))
        if ticket is not None and len(ticket.made) == len(ticket.rows):
            ticket.is_done.set()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._send(self._router.look(_now_s()))

    def _send(self, sends: Sends) -> None:
        """One frame for each member and ticket."""
        for index, parts in sends.items():
            writer, frames = self._links[index]
            for number in dict.fromkeys(part.ticket for part in parts):
                ticket = self._tickets[number]
                rows = {part.expert: bytes_of(ticket.rows[part.expert]) for part in parts if part.ticket == number}
                writer.write(frames.frame(Work(number, ticket.layer, rows)))


def _address(member: Member | None) -> str:
    """Return where a member listens; empty: it is not there."""
    return member.addresses[0] if member is not None and member.addresses else ""


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(READ_BYTES)
    if not data:
        raise EOFError("its connection ended")
    return data


def _now_s() -> float:
    return asyncio.get_running_loop().time()
