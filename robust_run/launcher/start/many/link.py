"""An agent's link to the controller: heartbeats and lease, orders and reports.

What is reported while there is no connection is not lost: the agent keeps the history of its newest attempt, and says it
again when it returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.messages import (
    CandidateList,
    CodeParts,
    CodeWanted,
    EventReport,
    FromAgent,
    FromController,
    HeartbeatReply,
    Hello,
    JoinRefused,
    Orders,
    Welcome,
)
from robust_run.launcher.controller.leadership.types import JobFinished
from robust_run.launcher.model.actions import EndAttempt, Finish, JobEnds, Order, StartAttempt
from robust_run.launcher.model.events import AttemptEnded, NodeEvent, SignalReceived
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.lease_times import LeaseTimes
from robust_run.launcher.model.start_notes import Seen
from robust_run.launcher.start.many.departure import SIGKILL, Departure
from robust_run.launcher.start.many.end_on_record import last_word
from robust_run.launcher.start.many.fence import Lease
from robust_run.launcher.start.many.finding import Dialer, Finder
from robust_run.launcher.start.many.heartbeats import Heartbeats
from robust_run.launcher.start.many.lease_watch import LeaseWatch
from robust_run.launcher.start.many.wire_trim import brief

#: Reports that are kept for the next connection; what an attempt came to is in the agent's history too.
MOST_UNSENT = 1000


class RemoteLink:
    """The tie of an agent on one of several nodes to its controller: a `ControllerLink`."""

    def __init__(  # noqa: PLR0913 - the parts of a tie
        self,
        *,
        agent: Agent,
        spec: JobSpec,
        many: ManyNodes,
        hello: Hello,
        dial: Dialer,
        lease: Lease,
        clock: Clock,
        say: Callable[[str], None],
        on_candidates: Callable[[tuple[str, ...]], None],
        own_controller: Callable[[], str],
        ask: Callable[[], Awaitable[str]],
        on_silence: Callable[[str, float], None] = lambda _where, _silent_s: None,
    ) -> None:
        self.failure: RobustRunError | None = None
        """Why this node gave up, if it did."""
        self.is_over = False
        """Whether the job is known to be over."""
        self._agent = agent
        self._spec = spec
        self._hello = hello
        self._finder = Finder(
            many=many,
            dial=dial,
            ask=ask,
            greeting=self._greeting,
            lease=lease,
            clock=clock,
            say=say,
            is_running=lambda: agent.is_running,
            is_done=lambda: agent.exit_code is not None,
        )
        self._lease = lease
        self._clock = clock
        self._say = say
        self._on_candidates = on_candidates
        self._own_controller = own_controller
        self._where = ""
        self._watch = LeaseWatch(agent, lease, clock, lambda: self._connection, on_silence)
        self._watch.looks_elsewhere = many.controller_standby > 0
        self._term = 0
        self._connection: Connection | None = None
        self._closed = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._heartbeats = Heartbeats(agent, lease, self._watch, clock)
        self._departure = Departure(
            agent,
            spec,
            self._send,
            say,
            leads=lambda: self.is_led_from_here,
            can_follow=lambda: any(each != own_controller() for each in self._finder.candidates),
        )
        self._unsent: deque[NodeEvent] = deque(maxlen=MOST_UNSENT)
        """What was reported while there was no connection."""

    def know_run(self, path: str) -> None:
        """Name the run directory where people are told what to type."""
        self._finder.run_path = path

    @property
    def is_led_from_here(self) -> bool:
        """Whether the controller that was obeyed last is this node's."""
        return bool(self._where) and self._where == self._own_controller()

    @property
    def is_leaving(self) -> bool:
        """Whether this node was told to leave the job."""
        return self._departure.is_told

    @property
    def candidates(self) -> tuple[str, ...]:
        """HOST:PORT of those in line to lead, as this node was told last."""
        return self._finder.candidates

    @property
    def term(self) -> int:
        """See `ControllerLink`."""
        return self._term

    @property
    def where(self) -> str:
        """HOST:PORT of the controller that was obeyed last."""
        return self._where

    # --- ControllerLink

    def report(self, event: NodeEvent) -> None:
        """Pass on what happened here."""
        if self._connection is not None:
            self._connection.send(EventReport(events=(brief(event),)))
        else:
            self._unsent.append(event)
        if isinstance(event, AttemptEnded):
            self._lease.guard(running=self._agent.is_running)
            self._departure.workers_ended()

    def deliver(self, seen: Seen) -> None:
        """Pass on what is seen of the ranks here; without a connection nobody asks for it."""
        self._send(seen)

    def fetch_code(self, tree: str) -> bool:
        """Ask the controller for a version; without a connection the order that needs it is heard again anyway."""
        self._send(CodeWanted(tree=tree))
        return self._connection is not None

    def told_to_end(self, number: int, *, again: bool) -> None:
        """End the job if the controller is on this node; else this node leaves it (see `departure`)."""
        self._departure.told_to_end(number, again=again)

    def guard_lost(self) -> None:
        """End everything here: nobody is left who would."""
        if self.is_led_from_here and not self._finder.candidates:
            self._send(EventReport(events=(SignalReceived(signal=SIGKILL, again=True),)))
        self._departure.go(SIGKILL)

    def _send(self, message: FromAgent) -> None:
        """Send a message; without a connection it is lost."""
        if self._connection is not None:
            self._connection.send(message)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with the connection that `take` was given."""
        self._departure.loop = loop
        self._life = loop.create_task(self._live())
        self._watch.start(loop)

    # --- the connection

    def take(self, connection: Connection) -> None:
        """Use a connection that was let in where the nodes meet."""
        self._connection = connection
        self._finder.met(connection.where)

    async def close(self) -> None:
        """Hang up, once what was sent is on its way."""
        if self._life is not None:
            self._life.cancel()
        self._heartbeats.stop()
        if self._connection is not None:
            self._connection.close("this node is done")

    async def _live(self) -> None:
        try:
            while True:
                if self._connection is None:
                    if self._agent.exit_code is not None:
                        return  # this node is about to go, and needs no controller for what it still does
                    self._connection = await self._finder.find()
                await self._serve(self._connection)
        except JobFinished as finished:
            self.is_over = True
            self._say("the job ended while this node could not reach it")
            self._agent.leave(finished.ended_with)
        except RobustRunError as error:
            self._give_up(error)
        except Exception as error:
            what = "the connection to the controller broke"
            asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})

    async def _serve(self, connection: Connection) -> None:
        """Follow the controller until the connection ends."""
        self._where = connection.where
        self._closed = asyncio.Event()
        self._welcomed(connection.welcome)
        self._heartbeats.start(connection)
        if self._unsent:  # some may have happened since the Hello was written; to say one twice changes nothing
            connection.send(EventReport(events=tuple(map(brief, self._unsent))))
            self._unsent.clear()
        connection.listen(self._on_message, self._on_closed)
        await self._closed.wait()
        self._heartbeats.stop()
        self._connection = None
        self._agent.forget_asked()
        self._lease.forget()

    def _welcomed(self, welcome: Welcome) -> None:
        self._term = max(self._term, welcome.term)
        self._lease.times = LeaseTimes(welcome.lease_s)
        self._finder.found(self._where)
        self._set_candidates(welcome.candidates)
        self._departure.say_again()

    def _on_closed(self, why: str) -> None:
        self._closed.set()
        if self._agent.exit_code is None and not self._departure.has_begun:
            self._say(f"the connection to the controller ended: {why}")

    def _on_message(self, message: FromController) -> None:
        if self._lease.is_over(self._clock.monotonic_s()):
            self._watch.fence()  # what was read late may be an order that is no longer true
            return
        match message:
            case HeartbeatReply() if message.term >= self._term:
                self._lease.answered(message.number, message.lease_s)
            case Orders() if message.term >= self._term:
                self._term = message.term
                for order in message.orders:
                    self._obey(order)
            case CodeParts():
                self._agent.take_code(message.parts)
            case CandidateList() if message.term >= self._term:
                self._set_candidates(message.candidates)
            case JoinRefused():
                self._give_up(PlatformError(message.reason))

    def _obey(self, order: Order) -> None:
        """Have an order carried out.

        While workers are started nothing else is done, and on a starved machine that takes seconds: so there is a heartbeat just
        before and one just after, and the lease counts from as late as can be.
        """
        self.is_over = self.is_over or isinstance(order, Finish)
        if isinstance(order, Finish) and not self.is_led_from_here:
            self._say(last_word(order))
        if isinstance(order, JobEnds):
            self._departure.job_ends()
        if isinstance(order, StartAttempt):
            self._lease.guard(running=True)
            self._heartbeats.now()
        self._agent.obey(order)
        if isinstance(order, StartAttempt):
            self._heartbeats.now()
        if isinstance(order, EndAttempt) and not self._agent.is_running:
            self._lease.guard(running=False)

    def _set_candidates(self, candidates: tuple[str, ...]) -> None:
        if candidates != self._finder.candidates:
            self._finder.candidates = candidates
            self._on_candidates(candidates)

    def _greeting(self, now_s: float) -> Hello:
        return msgspec.structs.replace(
            self._hello,
            term=self._term,
            attempt=self._agent.newest_attempt,
            now_s=now_s,
            events=tuple(map(brief, self._agent.history)),
        )

    def _give_up(self, error: RobustRunError) -> None:
        self.failure = self.failure or error
        if self._agent.is_running:
            self._agent.end_for(SIGKILL, 0.0, 0.0)
        self._agent.leave(error.exit_code)
