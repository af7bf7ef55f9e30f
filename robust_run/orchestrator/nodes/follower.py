"""A node that does not lead: it starts and follows launchers as the leader says, and tells what becomes of them.

It decides one thing: when it has heard nothing of the leader for `LEASE_S`, nothing of the job may run here any more (see
`nodes.words`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.control.errors import ProtocolError
from robust_run.orchestrator.guarding.words import Link
from robust_run.orchestrator.launchers import Launchers
from robust_run.orchestrator.nodes.words import (
    BEAT_S,
    KILL_S,
    LEASE_S,
    NODE,
    Beat,
    FromNode,
    Happened,
    JobOver,
    Leaving,
    NodeWelcome,
    Offer,
    Order,
    Several,
    StopOrder,
    Taken,
    ToNode,
)
from robust_run.orchestrator.words import Event, StopMember
from robust_run.roles.client import Place
from robust_run.roles.wire import Frames, WorkerHalf
from robust_run.roles.words import Challenge, Holds, Me, Refused, ToWorker, Welcome
from robust_run.terminal import plain
from robust_run.version import __version__

#: Workers of one machine, where nothing says how many fit.
MANY_SLOTS = 1 << 16
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
SILENT = 69
"""Exit code of a node that has found no leader for too long (EX_UNAVAILABLE)."""


class Follower:
    """One node. `log_dir`: parent of run directories here; `link`: to its guard."""

    def __init__(
        self, meeting: Several, log_dir: str, devices: int, env: Mapping[str, str], clock: Clock, link: Link
    ) -> None:
        self._log_dir, self._devices = log_dir, devices
        self._meeting, self._env, self._clock, self._link = meeting, env, clock, link
        self._launchers: Launchers | None = None
        self._frames: Frames | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._unsaid: deque[Happened] = deque()
        self._number = 0
        self._boot = os.urandom(8).hex()
        self._heard_s = clock.monotonic_s()
        self._told_s: float | None = None
        """When launchers were told to end, because no leader is heard."""
        self._leaves = ""
        self._code: int | None = None

    async def run(self) -> int:
        """Follow to the end of the job; return its exit code, or SILENT. Raises PlatformError."""
        watch = asyncio.ensure_future(self._watch())
        pause_s = FIRST_PAUSE_S
        try:
            while self._code is None:
                try:
                    await self._follow()
                    pause_s = FIRST_PAUSE_S
                except (OSError, asyncio.IncompleteReadError):
                    pass
                finally:
                    self._hang_up()
                if self._code is None:
                    self._give_up_if_late()
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
            return self._code
        finally:
            watch.cancel()

    def say(self, text: str) -> None:
        """Tell people a line."""
        with suppress(OSError):
            sys.stderr.write(f"robust-run: {plain(text)}\n")
            sys.stderr.flush()

    async def _follow(self) -> None:
        """Be connected once, until the connection ends."""
        meeting = self._meeting
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(meeting.host, meeting.port), LONGEST_PAUSE_S * 5
        )
        self._writer = writer
        here = writer.get_extra_info("sockname")[0]
        leader = writer.get_extra_info("peername")[0]
        await asyncio.wait_for(self._shake_hands(reader, writer), LONGEST_PAUSE_S * 5)
        while self._code is None:
            message = await self._next(reader)
            self._heard()
            self._take(message, here, leader)

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = Me(role=NODE, index=0, rank=0, serial=os.getpid(), attempt=0)
        half = WorkerHalf(self._meeting.secret, me, __version__)
        self._frames = frames = Frames(ToWorker | ToNode)
        writer.write(frames.frame(half.hello))
        challenge = await self._next(reader)
        if not isinstance(challenge, Challenge):
            raise _unexpected(challenge)
        proof, key_in, key_out = half.answer(challenge)
        writer.write(frames.frame(proof))
        frames.trust(key_in, key_out)
        writer.write(frames.frame(Holds()))
        welcome = await self._next(reader)
        if not isinstance(welcome, Welcome):
            raise _unexpected(welcome)

    async def _next(self, reader: asyncio.StreamReader) -> object:
        assert self._frames is not None
        while (message := self._frames.next()) is None:
            data = await reader.read(1 << 18)
            if not data:
                raise ConnectionResetError("the leader hung up")
            self._frames.feed(data)
        return message

    def _take(self, message: object, here: str, leader: str) -> None:
        match message:
            case NodeWelcome():
                self._welcomed(message, here, leader)
            case Order() if self._launchers is not None and not self._leaves:
                self._launchers.start(message.role, message.start, message.meets)
            case StopOrder() if self._launchers is not None:
                self._launchers.stop(message.stop)
            case Taken():
                while self._unsaid and self._unsaid[0].number <= message.number:
                    self._unsaid.popleft()
            case JobOver():
                self._code = message.code
            case Refused():
                raise PlatformError(f"the leader at {self._meeting.host}:{self._meeting.port} refuses: {message.why}")
            case _:
                pass

    def _heard(self) -> None:
        now_s, before_s = self._clock.monotonic_s(), self._heard_s
        self._heard_s, self._told_s = now_s, None
        if self._launchers is not None and now_s - before_s >= BEAT_S / 2:
            self._launchers.lease(LEASE_S + KILL_S)

    def _welcomed(self, welcome: NodeWelcome, here: str, leader: str) -> None:
        is_new = self._launchers is None
        # The lease runs before anything is started here: what follows may be stopped in the same moment.
        if self._launchers is None:
            folder = os.path.join(self._log_dir, welcome.run_id)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, f"roles.{self._meeting.name}.place")
            place = Place(address=leader, port=self._meeting.port, secret=self._meeting.secret, roles=())
            write_file(path, msgspec.json.encode(place), mode=0o600)
            self._launchers = Launchers(folder, path, self._env, self._link, self._happened, self.say)
            self._launchers.listen(self._signalled)
            self.say(f"{self._meeting.name} is part of {welcome.job}, logs in {folder}")
        self._launchers.lease(LEASE_S + KILL_S)
        self._send(
            Offer(
                name=self._meeting.name,
                boot=self._boot,
                slots=MANY_SLOTS,
                devices=self._devices,
                address=here,
                launchers=self._launchers.now(),
            )
        )
        if is_new:
            self._launchers.follow_known()
        for happened in self._unsaid:
            self._send(happened)

    def _happened(self, event: Event) -> None:
        self._number += 1
        happened = Happened(number=self._number, event=event)
        self._unsaid.append(happened)
        self._send(happened)
        if self._leaves and self._launchers is not None and not self._launchers.running():
            self._code = 128 + signal.SIGTERM
            self._hang_up()

    def _signalled(self, number: int, by: str = "") -> None:
        """The guard was told to end: so is all that runs here."""
        self._leaves = by or f"it was sent {signal.Signals(number).name}"
        self._send(Leaving(why=self._leaves))
        if self._launchers is None or not self._launchers.running():
            self._code = 128 + number
            self._hang_up()
        else:
            self._end_all(number)

    def _end_all(self, number: int) -> None:
        for each in self._launchers.now() if self._launchers is not None else ():
            if each.code is None and self._launchers is not None:
                self._launchers.stop(StopMember(member=each.member, serial=each.serial, signal=number))

    async def _watch(self) -> None:
        """Send signs of life; end what runs here when none comes back for too long."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._send(Beat())
            now_s = self._clock.monotonic_s()
            if self._launchers is None or now_s - self._heard_s < LEASE_S:
                continue
            if self._told_s is None:
                self._told_s = now_s
                if self._launchers.running():
                    self.say(f"nothing was heard of the leader for {LEASE_S:.0f} s: what runs on this node is ended")
                self._end_all(signal.SIGTERM)
            elif now_s - self._told_s >= KILL_S:
                self._end_all(signal.SIGKILL)

    def _give_up_if_late(self) -> None:
        if self._clock.monotonic_s() - self._heard_s > self._meeting.join_timeout_s:
            where = f"{self._meeting.host}:{self._meeting.port}"
            self.say(f"no leader was found at {where} for {self._meeting.join_timeout_s:.0f} s; is it started?")
            self._code = SILENT

    def _send(self, message: FromNode) -> None:
        if self._writer is not None and self._frames is not None and self._frames.is_trusted:
            self._writer.write(self._frames.frame(message))

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._frames = None


def _unexpected(message: object) -> Exception:
    if isinstance(message, Refused):
        return PlatformError(f"the leader refuses this node: {message.why}")
    return ProtocolError(f"a {type(message).__name__} in the middle of the handshake")
