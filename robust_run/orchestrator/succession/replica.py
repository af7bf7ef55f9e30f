"""One voter at work: it feeds the core (`core`), keeps log and record, and is connected to the others. One event loop.

What a leader says goes through `after_commit`: it leaves this process once a majority has all that it follows from, and only
while this process leads beyond doubt. What a leader writes goes through `append`, which ends the process where it leads no
more."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.model.succession_words import (
    PEER,
    Append,
    Appended,
    AskVote,
    Entry,
    FromPeer,
    PeerHello,
    Resigned,
    Vote,
    Voter,
    What,
)
from robust_run.orchestrator.nodes.dialing import Call, Line, dial
from robust_run.orchestrator.rules.raft import core
from robust_run.orchestrator.rules.raft.members import counting
from robust_run.orchestrator.rules.raft.state import (
    Action,
    Came,
    Committed,
    Cut,
    Dropped,
    Event,
    Follow,
    Followers,
    Heard,
    Lead,
    Leaves,
    ReplicaState,
    Resign,
    Say,
    Ship,
    StopLeading,
    Store,
    StoreAnew,
    Tick,
    Went,
    Wrote,
)
from robust_run.orchestrator.rules.raft.state import Record as RecordNow
from robust_run.orchestrator.succession.log import Log
from robust_run.orchestrator.succession.record import Record, boot_id, write_record
from robust_run.orchestrator.succession.stores import void
from robust_run.roles.words import Me, Refused, ToWorker

LOOK_S = 0.25
CONNECT_S = 3.0
#: A voter that does not answer for so long is dialed anew.
SILENT_S = 4.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
#: A log smaller than this keeps what is void.
LEAST_BYTES = 16 << 20


class Hooks:
    """What the process of this node does as its part changes."""

    def leads(self) -> None:
        """This voter leads from now on."""

    def stopped(self, why: str) -> None:
        """It leads no more. Does not return where this process led."""

    def follows(self, leader: str) -> None:
        """Another leads."""


@dataclass(frozen=True)
class Seat:
    """Of one voter. `folder`: of logs and records; `me`: this node; `voters`: all, where they are new."""

    folder: str
    run_id: str
    me: Voter
    call: Call
    voters: tuple[Voter, ...] = ()
    stands: bool = True
    """Not where this node is about to leave: it votes, but is not to be elected."""


class Replica:
    """`record`: what an earlier process of this node left. Without one, and without voters, this node founds the job."""

    def __init__(
        self,
        seat: Seat,
        clock: Clock,
        hooks: Hooks,
        say: Callable[[str], None],
        record: Record | None,
    ) -> None:
        """Raises PlatformError: another process has the log, OSError."""
        self.run_id, self._call, self._clock, self._hooks = seat.run_id, seat.call, clock, hooks
        self._me = me = seat.me
        self._say = say
        self.path = os.path.join(seat.folder, f"{me.name}.json")
        self.log = Log(os.path.join(seat.folder, f"{me.name}.log"), say)
        self.voters: tuple[Voter, ...] = record.voters if record is not None else seat.voters or (me,)
        self.state = ReplicaState(
            name=me.name,
            seats=tuple(each.name for each in self.voters),
            counting=counting(self.log.voters),
            term=record.term if record is not None else 0,
            voted=record.voted if record is not None else "",
            runs=self.log.runs(),
            last=self.log.last,
            dropped=self.log.dropped,
            stands=seat.stands,
        )
        core.begin(self.state, clock.monotonic_s())
        self._lines: dict[str, Line] = {}
        """Connections that this voter has made; answers come back on them."""
        self._asked_s: dict[str, float] = {}
        """Since when who was dialed has not answered."""
        self._workers: dict[str, Worker] = {}
        """And those that others have made."""
        self._names: dict[Worker, str] = {}
        self._held: deque[tuple[int, Callable[[], None]]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_awake = False
        self.is_over = False
        self._large_bytes = max(LEAST_BYTES, 3 * self.log.size_bytes)
        self._whole_at = 0
        """A leader has put all queues into the log, up to here."""
        self.write_whole: Callable[[], None] = lambda: None
        """Has a leader put all queues into the log, so that what was there before is void."""

    # What this node's process does.

    def begin(self) -> None:
        """Look for the other voters; a node that founds the job leads."""
        self._tasks.append(asyncio.ensure_future(self._watch()))
        if len(self.voters) > 1:
            self._record()
        if len(self.voters) == 1 and not self.state.term:
            self.state.term, self.state.voted = self.state.last_term + 1, self._me.name
            self._do(core.lead_first(self.state, self._clock.monotonic_s()))
        self._dial_all()

    def record_voters(self, voters: Sequence[Voter]) -> None:
        """Put on record who the voters will be, before any of them is told. Raises OSError."""
        before, self.voters = self.voters, tuple(voters)
        self._record()
        self.voters = before

    def found(self, voters: Sequence[Voter]) -> None:
        """From now on others are voters, too: nothing leaves this leader that no majority of them has. Raises OSError."""
        self.voters = tuple(voters)
        names = tuple(each.name for each in voters)
        self._do(core.found(self.state, names, self._clock.monotonic_s()))
        self._dial_all()

    def over(self) -> None:
        """The job's end is committed: what is said now needs no majority any more."""
        self.is_over = True
        self._release()

    def close(self) -> None:
        """Let go of everything."""
        for task in self._tasks:
            task.cancel()
        for line in self._lines.values():
            line.hang_up()
        for worker in list(self._names):
            worker.end()
        self._names, self._lines = {}, {}
        self.log.close()

    def leaves(self, name: str, is_leaving: bool) -> None:
        """A node was told to leave; or another process of it is here."""
        self._tell(Leaves(name, is_leaving))

    async def let_go(self, most_s: float) -> None:
        """Wait until the others decide without this voter, whose node leaves; but not for longer than that."""
        until_s = self._clock.monotonic_s() + most_s
        while self.state.name in self.state.voters and self._clock.monotonic_s() < until_s:
            await asyncio.sleep(LOOK_S / 5)

    def followers(self) -> Followers:
        """Whether others could lead on, if this node left now."""
        return self.state.followers(self._clock.monotonic_s())

    def resign(self) -> None:
        """Lead no more, as this node leaves. Does not return where this process leads a job that goes on."""
        if not self.is_over:
            self._tell(Resign())

    def may_act(self) -> bool:
        """Whether this voter leads beyond doubt."""
        return self.is_over or self.state.may_act(self._clock.monotonic_s())

    def append(self, what: What, name: str, data: bytes) -> None:
        """Put an entry at the end of the log, as leader. Does not return where this process leads no more a job that goes on."""
        if self.is_over:
            return
        if not self.state.may_write(self._clock.monotonic_s()):
            self._tell(Tick())
            self._hooks.stopped("it stood still")
            raise PlatformError("this process does not lead the job any more")
        self.log.put((Entry(self.state.last + 1, self.state.term, what, name, data),))
        self._do(core.step(self.state, Wrote(), self._clock.monotonic_s()))
        if not self._is_awake:
            self._is_awake = True
            asyncio.get_running_loop().call_soon(self._ship)

    def after_commit(self, act: Callable[[], None]) -> None:
        """Do something that others see, once a majority has all that is in the log now."""
        if not self._held and self.state.committed >= self.state.last and self.may_act():
            act()
        else:
            self._held.append((self.state.last, act))

    async def committed(self) -> None:
        """Wait until all that is in the log now is committed, and said."""
        done = asyncio.get_running_loop().create_future()
        self.after_commit(lambda: done.set_result(None))
        await done

    # Others.

    def hear(self, worker: Worker, message: object) -> None:
        """Take in what a voter says that has dialed this one."""
        if isinstance(message, PeerHello):
            if message.run_id == self.run_id and message.name in self.state.seats:
                self._names[worker], self._workers[message.name] = message.name, worker
            else:
                worker.end("it is no voter of this job")
        elif worker in self._names and isinstance(message, (AskVote, Append, Resigned)):
            self._tell(Heard(self._names[worker], message))

    def went(self, worker: Worker) -> None:
        """Such a connection has ended."""
        name = self._names.pop(worker, "")
        if self._workers.get(name) is worker:
            del self._workers[name]

    def _dial_all(self) -> None:
        for voter in self.voters:
            if voter.name != self._me.name:
                self._tasks.append(asyncio.ensure_future(self._stay_connected(voter)))

    async def _stay_connected(self, voter: Voter) -> None:
        pause_s = FIRST_PAUSE_S
        me = Me(role=PEER, index=0, rank=0, serial=os.getpid(), attempt=0)
        while True:
            with suppress(OSError, asyncio.TimeoutError, RobustRunError):
                line = await dial((voter.address, voter.port), self._call, me, ToWorker | FromPeer, CONNECT_S)
                pause_s = FIRST_PAUSE_S
                await self._use(voter.name, line)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _use(self, name: str, line: Line) -> None:
        self._lines[name] = line
        self._asked_s.pop(name, None)
        try:
            line.send(PeerHello(name=self._me.name, run_id=self.run_id))
            self._tell(Came(name))
            while True:
                message = await line.next()
                self._asked_s.pop(name, None)
                if isinstance(message, Refused):
                    raise PlatformError(message.why)
                if isinstance(message, (Vote, Appended)):
                    self._tell(Heard(name, message))
        finally:
            line.abort()
            if self._lines.pop(name, None) is not None:
                self._tell(Went(name))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = self._clock.monotonic_s()
            for name, asked_s in list(self._asked_s.items()):
                if now_s - asked_s > SILENT_S and name in self._lines:
                    self._lines[name].abort()
            self._tell(Tick())

    def _ship(self) -> None:
        self._is_awake = False
        self._tell(Tick())

    def _tell(self, event: Event) -> None:
        self._do(core.step(self.state, event, self._clock.monotonic_s()))
        self._release()

    def _release(self) -> None:
        """Do what had to wait for a majority, in order."""
        while self._held and (self.is_over or self._held[0][0] <= self.state.committed) and self.may_act():
            self._held.popleft()[1]()

    def _do(self, actions: list[Action]) -> None:
        try:
            self._do_all(actions)
        except OSError as error:  # what is on disk is not what this process knows
            self._hooks.stopped(f"{error.filename or self.path} cannot be written: {error.strerror}; make room")
            raise

    def _do_all(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case RecordNow():
                    self._record()
                case Say():
                    self._send(action.to, action.message)
                case Ship():
                    self._send(action.to, self._filled(action.message))
                case Cut() | Store() | StoreAnew():
                    self._store(action)
                case Committed():
                    self._keep_small()
                case Lead():
                    self._hooks.leads()
                case StopLeading() if not self.is_over:
                    self._held.clear()
                    self._hooks.stopped(action.why)
                case StopLeading():
                    pass
                case Follow():
                    self._hooks.follows(action.leader)

    def _store(self, action: Cut | Store | StoreAnew) -> None:
        if isinstance(action, Cut):
            self.log.cut(action.after)
        elif isinstance(action, Store):
            self.log.put(action.entries)
        else:
            self.log.begin_anew(action.entries, begins=action.begins)
            if action.is_whole:
                self.log.take_anew(self.state.runs, self.state.dropped)

    def _record(self) -> None:
        state = self.state
        write_record(
            self.path,
            Record(
                run_id=self.run_id,
                name=self._me.name,
                boot=boot_id(),
                voters=self.voters,
                term=state.term,
                voted=state.voted,
            ),
        )

    def _send(self, to: str, message: AskVote | Vote | Append | Appended | Resigned) -> None:
        if isinstance(message, (Append, AskVote, Resigned)):
            line = self._lines.get(to)
            if line is not None and not isinstance(message, Resigned):  # which nobody answers
                self._asked_s.setdefault(to, self._clock.monotonic_s())
            if line is not None:
                line.send(message)
        elif to in self._workers:
            self._workers[to].send(message)

    def _filled(self, append: Append) -> Append:
        entries = self.log.after(append.after, through=append.through or None)
        return msgspec.structs.replace(append, entries=entries)

    def _keep_small(self) -> None:
        """Leave out of the log what is void, once it is large; a leader makes it void."""
        is_large = self.log.size_bytes >= self._large_bytes
        if self.state.committed < self._whole_at or not (self._whole_at or is_large):
            return
        before, committed = self.log.size_bytes, self.state.committed
        self._large_bytes = 2 * before
        if self.state.part == "leads" and not self._whole_at:
            asyncio.get_running_loop().call_soon(self._write_whole)
            return
        with suppress(OSError):
            self.log.shrink(void(self.log.all(), committed), committed)
            self._do(core.step(self.state, Dropped(committed), self._clock.monotonic_s()))
            if self.log.size_bytes < before / 2 or self._whole_at:
                self._large_bytes = max(LEAST_BYTES, 3 * self.log.size_bytes)
            self._whole_at = 0

    def _write_whole(self) -> None:
        self.write_whole()
        self._whole_at = self.state.last
