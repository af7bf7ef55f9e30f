"""A node that does not lead: it starts and follows launchers as the leader says, and tells what becomes of them.

It decides nothing but what its lease says (`nodes.lease`): when it has heard nothing of the leader for too long, nothing of the
job may run here any more. A member that was ended for that has not failed: it is told as killed, and begins again elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.records.memory_folders import remove_tree
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.orchestrator.guarding.words import Asked, Link, left_running
from robust_run.orchestrator.launchers import Launchers
from robust_run.orchestrator.model.node_words import (
    BEAT_S,
    NODE,
    SILENT_S,
    Beat,
    Founded,
    FromNode,
    JobOver,
    Leaving,
    NodeWelcome,
    NotYet,
    Several,
    Taken,
    ToNode,
)
from robust_run.orchestrator.model.words import Event
from robust_run.orchestrator.nodes.dialing import Call, Line, dial
from robust_run.orchestrator.nodes.finding import Finding
from robust_run.orchestrator.nodes.orders import Orders
from robust_run.orchestrator.nodes.searching import Search
from robust_run.orchestrator.nodes.telling import Aloud, PlaceFile, Unsaid, first_offer, how_it_ended
from robust_run.orchestrator.nodes.under_slurm import Start
from robust_run.orchestrator.rules.lease import NodeLease
from robust_run.roles.words import Me, Refused, ToWorker

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Follower:
    """One node. `log_dir`: parent of run directories here; `link`: to its guard."""

    def __init__(
        self,
        meeting: Several,
        log_dir: str | None,
        start: Start,
        env: Mapping[str, str],
        clock: Clock,
        link: Link,
        finding: Finding | None = None,
    ) -> None:
        self._log_dir, self._slurm = log_dir, start.slurm
        self._finding = finding or Finding(meeting)
        self._folder = self._finding.folder
        self._call = Call(meeting.secret, meeting.tls)
        self._meeting, self._env, self._clock, self._link = meeting, env, clock, link
        self._orders: Orders | None = None
        self._line: Line | None = None
        self._place_file = PlaceFile(meeting)
        self._unsaid = Unsaid()
        self._offer = first_offer(meeting, start.has)
        self._guard_said: list[object] = self._finding.guard_said
        self._lease = NodeLease(clock.monotonic_s())
        self._leaves = self._finding.leaves
        self._has_begun_to_leave = self.is_over = False
        self._job = ""
        self._aloud = Aloud()
        self.say = self._aloud.say
        self._search = Search(meeting, self._finding, self._slurm, clock, self.say)
        self._code: int | None = None

    async def run(self) -> int:
        """Follow to the end of the job; return its exit code, or SILENT. Raises PlatformError."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._link.socket.fileno(), self._guard_speaks)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(
                number, lambda: None
            )  # Slurm sends to every process of a step; the guard tells of it
        watch = asyncio.ensure_future(self._watch())
        self._take_said([self._guard_said.pop(0) for _ in self._guard_said[:]])
        pause_s = FIRST_PAUSE_S
        try:
            while self._code is None:
                try:
                    await self._follow()
                    pause_s = FIRST_PAUSE_S
                except (OSError, asyncio.TimeoutError):
                    pass
                except PlatformError as error:
                    self._search.refuse_strangers(error, is_in=self._orders is not None)
                    if self._orders is None and not self._folder:
                        raise
                    self._aloud.say_once(f"{error}; it is tried again")
                finally:
                    self._hang_up()
                if self._code is None:
                    code = await self._search.given_up(self._leaves, is_in=self._orders is not None)
                    self._code = code if self._code is None else self._code
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
            return self._code
        finally:
            watch.cancel()

    def _guard_speaks(self) -> None:
        """Before there are launchers: its first word is kept for them, and who is told to end has nothing to wait for."""
        try:
            said = list(self._link.receive())
        except (EOFError, OSError):
            self._code = 128 + signal.SIGTERM
            said = []
        self._take_said(said)

    def _take_said(self, said: list[object]) -> None:
        for message in said:
            if not isinstance(message, Asked):
                self._guard_said.append(message)
            elif self._finding.signalled(message.number, ""):
                pass  # this node leads
            elif left_running(self._guard_said):
                self._will_leave(message.number)  # what an earlier process has started is ended in good order
            else:
                self._code = 128 + message.number
        if self._code is not None:
            asyncio.get_running_loop().remove_reader(self._link.socket.fileno())
            self._hang_up()

    async def _follow(self) -> None:
        """Be connected once, until the connection ends."""
        where = self._finding.next()
        if where is None:
            return
        me = Me(role=NODE, index=0, rank=0, serial=os.getpid(), attempt=0)
        self._line = line = await dial(where, self._call, me, ToWorker | ToNode, self._finding.connect_s)
        self._search.heard()
        while self._code is None and self._line is line:
            message = await line.next()
            self._search.heard()
            self._take(message, line, where[1])

    def pids(self) -> dict[str, int]:
        """Return the launchers that run here, by the name of their run directory."""
        return self._orders.launchers.pids() if self._orders is not None else {}

    @property
    def is_leaving(self) -> bool:
        """Whether this node was told to leave."""
        return bool(self._leaves)

    def end(self) -> None:
        """Follow nobody any more."""
        self._code = 0 if self._code is None else self._code
        self._hang_up()

    def look_anew(self) -> None:
        """Another node leads."""
        if self._line is not None:
            self._line.abort()

    def _take(self, message: object, line: Line, port: int) -> None:
        match message:
            case NodeWelcome():
                self._finding.check(message, line.there)
                self._welcomed(message, line, port)
            case Founded():
                self._finding.founded(message)
            case JobOver():
                self._code, self.is_over = message.code, True
                is_said = self._slurm is not None or self._finding.leads_here()
                if line_of_end := how_it_ended(self._job, message, is_said=is_said):
                    self.say(line_of_end)
            case NotYet():
                self._aloud.say_once(f"this node waits: {message.why}")
            case Refused():
                raise PlatformError(f"the leader at {line.there}:{port} refuses: {message.why}")
            case Taken():
                self._unsaid.on_record(message.number)
            case _ if self._orders is not None:
                self._orders.take(message)
            case _:
                pass

    def _welcomed(self, welcome: NodeWelcome, line: Line, port: int) -> None:
        is_new, self._job = self._orders is None, welcome.job
        orders = self._orders or self._open(welcome)
        self._place_file.write(self._folder, line.there, port, moves=welcome.term > 0)
        orders.offered_s = self._clock.monotonic_s()
        where = (self._finding.address or line.here, self._finding.port)
        launchers = orders.launchers.now()
        self._send(msgspec.structs.replace(self._offer, address=where[0], port=where[1], launchers=launchers))
        if is_new:
            orders.launchers.follow_known()
        if self._leaves:
            self._leave(signal.SIGTERM, is_new=is_new)
        for happened in self._unsaid:
            self._send(happened)

    def _open(self, welcome: NodeWelcome) -> Orders:
        """Make what starts launchers here. Raises UserError where there can be no run directory, PlatformError, OSError."""
        if not self._folder:
            run_directory = RunDirectory.join(self._log_dir, welcome.run_id, os.getppid())
            self._folder = run_directory.path
            if run_directory.memory != run_directory.path:
                remove_tree(run_directory.memory)  # of members alone: each has its own
        path = os.path.join(self._folder, f"roles.{self._meeting.name}.place")
        env = self._env
        if self._slurm is not None:
            env = self._slurm.members_env(env, self._folder)
            self._slurm.watch(self._folder, self.say, self._finding.time_is_over)
        launchers = Launchers(self._folder, path, env, self._link, self._happened, self.say)
        launchers.trust = self._meeting.members_options
        asyncio.get_running_loop().remove_reader(self._link.socket.fileno())
        launchers.listen(self._signalled, self._guard_said)
        if not launchers.pids():
            # The lease runs before anything is started here: this process may be stopped in the same moment. Where launchers of
            # an earlier process run, theirs is in force until the leader has answered.
            self._lease = NodeLease(self._clock.monotonic_s())
            launchers.lease(self._lease.until_s)
        self._orders = orders = Orders(
            launchers, self._meeting.name, self._clock, self._lease, self._send, self._happened, self.say
        )
        self._finding.opened(self._folder)
        self.say(f"{self._meeting.name} is part of {welcome.job}, logs in {self._folder}")
        return orders

    def _happened(self, event: Event) -> None:
        event = self._orders.as_told(event) if self._orders is not None else event
        self._send(self._unsaid.add(event))
        if self._has_begun_to_leave and self._orders is not None and not self._orders.launchers.running():
            self._code = 128 + signal.SIGTERM
            self._hang_up()

    def _signalled(self, number: int, by: str = "") -> None:
        """The guard was told to end: so is all that runs here, or the job where this node leads it."""
        if self._finding.signalled(number, by):
            return
        self._will_leave(number, by)
        self._leave(number)

    def _will_leave(self, number: int, by: str = "") -> None:
        self._leaves = by or f"it was sent {signal.Signals(number).name}"
        self._finding.will_leave(self._leaves)

    def _leave(self, number: int, *, is_new: bool = True) -> None:
        self._has_begun_to_leave = True
        self._send(Leaving(why=self._leaves))
        if is_new and (self._orders is None or not self._orders.launchers.running()):
            self._code = 128 + number
            self._hang_up()
        elif is_new and self._orders is not None:
            self._orders.is_leaving = True
            self._orders.end_all(number)

    async def _watch(self) -> None:
        """Send signs of life; end what runs here when none comes back for too long, and look for the leader anew."""
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = self._clock.monotonic_s()
            self._send(Beat(sent_s=now_s))
            if self._line is not None and self._search.silent_s() >= SILENT_S:
                self._line.abort()
            if self._orders is not None:
                self._orders.end_what_may_not_run(now_s)

    def _send(self, message: FromNode) -> None:
        if self._line is not None:
            self._line.send(message)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.hang_up()
        self._line = None
