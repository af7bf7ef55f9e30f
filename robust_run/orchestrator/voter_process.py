"""The process of one node in a job whose leader may be lost: it follows always, has a vote where it was given one, and leads if
elected.

    guard ── this process ── Follower       members of this node, as the leader says (also where that is this process)
                          ├─ Replica        the node's vote and its copy of the log
                          └─ Leader         while this node leads: journal, queues, workers, other nodes

A process that leads no more ends at once, and its guard starts another, which follows: nothing is left of what it had decided and
nobody had confirmed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.orchestrator.connection import context_of
from robust_run.orchestrator.guarding.guard import TURNED
from robust_run.orchestrator.guarding.words import AllKnown, Link, Note
from robust_run.orchestrator.leader import Leader
from robust_run.orchestrator.model.node_words import Founded, NodeWelcome, Several
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.succession_words import Voter
from robust_run.orchestrator.model.words import Finish
from robust_run.orchestrator.nodes.dialing import Call
from robust_run.orchestrator.nodes.finding import Finding, Rounds
from robust_run.orchestrator.nodes.follower import Follower
from robust_run.orchestrator.nodes.under_slurm import Start
from robust_run.orchestrator.succession.coming_back import FOLDER, Earlier
from robust_run.orchestrator.succession.door import Door
from robust_run.orchestrator.succession.handing_over import HandOver
from robust_run.orchestrator.succession.log import begin_again
from robust_run.orchestrator.succession.post import Post
from robust_run.orchestrator.succession.record import read_record, why_void
from robust_run.orchestrator.succession.replica import Hooks, Replica, Seat
from robust_run.terminal import plain

#: A place where no leader may be is left after so long.
CONNECT_S = 3.0
#: A node that is told to leave waits so long until the others decide without it.
LET_GO_S = 5.0


class _Noted(msgspec.Struct, frozen=True):
    """What the next process of this node has to know, by its guard."""

    folder: str
    voters: tuple[Voter, ...] = ()
    leaves: str = ""
    """Why this node leaves, where it was told to."""


@dataclass(frozen=True)
class Here:
    """This node. `spec`, `folder`: what the job was asked for, and its run directory, on the node that founds it."""

    env: Mapping[str, str]
    start: Start
    log_dir: str | None
    spec: RolesSpec | None = None
    folder: str = ""
    led: Callable[[str, int, bool], None] = lambda _, __, ___: None
    """Is told when the job is over that this node led in the end, and did not found: the run directory here, the exit code, and
    whether the node that founded it is still part of it."""
    is_alone_told: bool = False
    """SIGTERM is about this node alone (`--on-sigterm node`), also where it leads."""
    earlier: Earlier | None = None
    """The run that went on while this node was away."""


class House(Finding, Hooks):
    """The process of one node."""

    connect_s = CONNECT_S

    def __init__(
        self,
        meeting: Several,
        here: Here,
        clock: Clock,
        link: Link,
        listener: socket.socket,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        """`listener`: where this node is reached; the guard holds it."""
        super().__init__(meeting)
        self._here, self._clock, self._link, self._leave = here, clock, link, leave
        self._is_founder = here.spec is not None
        self.folder = here.folder
        self._door = Door(meeting.secret, listener, context_of(meeting.tls))
        self.port = self._door.port
        self.address = meeting.host if self._is_founder else ""
        self._replica: Replica | None = None
        self._rounds = Rounds()
        self._term = 0
        self._noted = self._guard_s_note()
        self.folder = self.folder or self._noted.folder
        self._rounds.voters, self.leaves = self._noted.voters, self._noted.leaves
        self._follower = Follower(meeting, here.log_dir, here.start, here.env, clock, link, self)
        self._leader: Leader | None = None
        self._leading: asyncio.Task[Finish] | None = None
        self.has_left = False
        """Once `run` has ended: whether the job goes on without this node."""
        self._hand_over: HandOver | None = None
        self._unheard: list[tuple[int, str]] = []

    async def run(self) -> int:
        """Take part in the job to its end; return this node's exit code. Raises UserError, PlatformError, OSError."""
        await self._door.open()
        self._vote()
        following = asyncio.ensure_future(self._follower.run())
        try:
            code = await following
            if self._leading is None:
                self.has_left = self._follower.is_leaving and not self._follower.is_over
                if self._replica is not None and self._follower.is_leaving:
                    await self._replica.let_go(LET_GO_S)
                return code
            finish = await self._leading
            if finish.sentence and self._leader is not None:
                job = self._leader.state
                self._leader.say(f"{self._leader.name} {'is done' if job.code == 0 else 'ended'}: {finish.sentence}")
            if not self._is_founder and self._leader is not None and self._replica is not None:
                first = self._replica.voters[0].name
                self._here.led(self.folder, finish.code, first in self._leader.state.nodes)
            return finish.code
        finally:
            following.cancel()
            self._door.close()
            if self._replica is not None:
                self._replica.close()

    def say(self, text: str) -> None:
        """Tell people a line."""
        with suppress(OSError):
            sys.stderr.write(f"robust-run: {plain(text)}\n")
            sys.stderr.flush()

    # Where the leader is.

    def next(self) -> tuple[str, int] | None:
        """See `Finding`."""
        if not self._rounds.voters:
            return super().next()
        # A voter that counts no more is told nothing: it looks for itself.
        return self._rounds.next(self._replica.state.leader or None if self._replica is not None else None)

    def places(self) -> str:
        """See `Finding`."""
        return self._rounds.places() or super().places()

    def check(self, welcome: NodeWelcome, address: str) -> None:
        """See `Finding`."""
        here = os.path.basename(self.folder)
        if self.folder and welcome.run_id != here:
            raise PlatformError(f"{address} leads the run {welcome.run_id}, and this node is part of {here}")
        if welcome.term < max(self._term, self._replica.state.term if self._replica is not None else 0):
            raise ConnectionResetError(f"{address} leads no more")
        self._term = welcome.term

    def opened(self, folder: str) -> None:
        """See `Finding`."""
        self.folder = folder
        self._note()

    def founded(self, founded: Founded) -> None:
        """See `Finding`. A node that is told so for the first time, and has a vote, uses it from now on."""
        is_new = not self._rounds.voters
        self._rounds.voters = founded.voters
        self._note()
        if is_new and self._replica is None:
            self._vote(founded.voters)

    def will_leave(self, why: str) -> None:
        """See `Finding`: it is not to be elected any more. Empty: it does not leave after all."""
        self.leaves = why
        if self._replica is not None:
            self._replica.state.stands = not why
        self._note()

    def signalled(self, number: int, by: str) -> bool:
        """See `Finding`: the node that leads ends the job, or hands it over."""
        if self._leader is None:
            self._unheard += [(number, by)] if self._leading is not None else []
            return self._leading is not None
        (self._leader.signalled if self._hand_over is None else self._hand_over.told)(number, by)
        return True

    def leads_here(self) -> bool:
        """See `Finding`."""
        return self._leading is not None

    def time_is_over(self) -> None:
        """See `Finding`."""
        self.signalled(signal.SIGTERM, "the time limit")

    # What the election says.

    def leads(self) -> None:
        """See `Hooks`."""
        if self._replica is None or self._leading is not None:
            return
        if not self._is_founder or self._replica.state.term > 1:
            self.say(f"{self._meeting.name} leads the job from here (term {self._replica.state.term})")
        self._leading = asyncio.ensure_future(self._lead(self._replica))
        self._leading.add_done_callback(lambda _: self._follower.end())

    def stopped(self, why: str) -> None:
        """See `Hooks`."""
        then = "" if self.leaves else "; it follows"
        self.say(f"{self._meeting.name} does not lead the job any more: {why}{then}")
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        self._leave(TURNED)

    def follows(self, leader: str) -> None:  # noqa: ARG002
        """See `Hooks`."""
        self._follower.look_anew()

    # Parts of it.

    async def _lead(self, replica: Replica) -> Finish:
        past = await Post.read(replica)
        post = Post(replica, self._door, self.folder, self._meeting, self._follower.pids, self.say, past)
        spec = past.spec or self._here.spec
        if spec is None:
            raise PlatformError(f"{replica.path}: the log does not say what the job is")
        self._leader = Leader(
            spec, self.folder, self._here.env, self._clock, self._link, self._meeting, self._here.start, post
        )
        if self._here.is_alone_told:
            self._hand_over = HandOver(replica, self._leader.signalled, self.will_leave, self.say)
        for number, by in self._unheard:
            asyncio.get_running_loop().call_soon(self.signalled, number, by)
        return await self._leader.run()

    def _vote(self, voters: tuple[Voter, ...] = ()) -> None:
        """Take up this node's vote, if it has one: a new one, or that of an earlier process of this node."""
        if not self.folder:
            return
        name = self._meeting.name
        folder = os.path.join(self.folder, FOLDER)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, f"{name}.json")
        record = read_record(path)
        if record is not None and voters and record.voters != voters:
            begin_again(folder, name, keep=False)  # of an earlier start of this job, whose processes have ended
            record = None
        if record is not None:
            moved = self._here.earlier.why_void if self._here.earlier is not None else ""
            if why := moved or why_void(record, os.path.basename(self.folder), self.port):
                self.say(f"{name} has no vote any more: {why}")
                return
            self._rounds.voters = self._rounds.voters or record.voters
            found: Voter | None = record.seat
        elif self._is_founder and not self._noted.voters:
            found = Voter(name, self._meeting.host, self.port)
        else:
            found = next((each for each in voters if each.name == name), None)
        if found is None:
            return
        call = Call(self._meeting.secret, self._meeting.tls)
        seat = Seat(folder, os.path.basename(self.folder), found, call, voters, stands=not self.leaves)
        replica = Replica(seat, self._clock, self, self.say, record)
        self._replica = self._door.replica = replica
        replica.begin()

    def _guard_s_note(self) -> _Noted:
        """Wait for the guard's first word. Raises EOFError."""
        while True:
            for message in self.guard_said:
                if isinstance(message, AllKnown):
                    first = self._here.earlier or Earlier("", ())
                    first_note = _Noted(first.folder, first.voters)
                    return msgspec.msgpack.decode(message.note, type=_Noted) if message.note else first_note
            self.guard_said += self._link.receive()

    def _note(self) -> None:
        with suppress(OSError):  # the guard is gone: that is heard elsewhere
            self._link.send(Note(data=msgspec.msgpack.encode(_Noted(self.folder, self._rounds.voters, self.leaves))))
