"""An agent's link to the controller: heartbeats and lease, orders and reports.

What is reported while there is no connection is not lost: the agent keeps the history of its newest attempt, and says it
again when it returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

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
    FromController,
    Heartbeat,
    HeartbeatReply,
    Hello,
    JoinRefused,
    Leaving,
    Orders,
    Welcome,
)
from robust_run.launcher.controller.leadership.types import JobFinished
from robust_run.launcher.model.actions import EndAttempt, Finish, StartAttempt
from robust_run.launcher.model.events import AttemptEnded, NodeEvent, SignalReceived
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.lease_times import LeaseTimes
from robust_run.launcher.start.many.fence import Lease
from robust_run.launcher.start.many.finding import Dialer, Finder
from robust_run.launcher.start.many.wire_trim import brief
from robust_run.signals import signal_name

if TYPE_CHECKING:
    from robust_run.launcher.model.start_notes import Seen

#: How often the lease is looked at.
LOOK_S = 0.05
#: Looks further apart than this mean that this process was held up, so that silence proves nothing.
HELD_UP_S = 0.5
#: Reports that are kept for the next connection; what an attempt came to is in the agent's history too.
MOST_UNSENT = 1000
#: How much longer than the workers' own time a stop may take before this node goes by itself.
PATIENCE_S = 5.0
#: And when somebody asks again.
AT_ONCE_S = 2.0

SIGKILL = 9


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
        self._agent = agent
        self._spec = spec
        self._many = many
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
        self._on_silence = on_silence
        self._looked_at_s: float | None = None
        self._awake_since_s = 0.0
        self._term = 0
        self._connection: Connection | None = None
        self._closed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: asyncio.Task[None] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._number = 0
        self._leaving: int | None = None
        self._stop: SignalReceived | None = None
        """What ends the job, until it is over: a controller that died may not have heard or kept it."""
        self._unsent: deque[NodeEvent] = deque(maxlen=MOST_UNSENT)
        """What was reported while there was no connection."""

    def know_run(self, path: str) -> None:
        """Name the run directory where people are told what to type."""
        self._finder.run_path = path

    @property
    def is_led_from_here(self) -> bool:
        """Whether the controller that was obeyed last is this node's."""
        return bool(self._where) and self._where == self._own_controller()

    # --- ControllerLink

    def report(self, event: NodeEvent) -> None:
        """Pass on what happened here."""
        if self._connection is not None:
            self._connection.send(EventReport(events=(brief(event),)))
        else:
            self._unsent.append(event)
        if isinstance(event, AttemptEnded):
            self._lease.guard(running=self._agent.is_running)
            if self._leaving is not None and not self._agent.is_running:
                self._agent.leave(128 + self._leaving)

    def deliver(self, seen: Seen) -> None:
        """Pass on what is seen of the ranks here; without a connection nobody asks for it."""
        if self._connection is not None:
            self._connection.send(seen)

    def fetch_code(self, tree: str) -> bool:
        """Ask the controller for a version; without a connection the order that needs it is heard again anyway."""
        if self._connection is None:
            return False
        self._connection.send(CodeWanted(tree=tree))
        return True

    def told_to_end(self, number: int, *, again: bool) -> None:
        """End the job if the controller is on this node; else this node leaves it."""
        if self.is_led_from_here and self._leaving is None:
            self._stop = SignalReceived(signal=number, again=again)
            if self._connection is not None:
                self._connection.send(EventReport(events=(self._stop,)))
            assert self._loop is not None
            patience_s = self._spec.shutdown_timeout_s + self._spec.restart_grace_s + PATIENCE_S
            self._loop.call_later(AT_ONCE_S if again else patience_s, self._go, number, again)
        elif self._leaving is None:
            self._go(number)
        elif again:
            self._agent.end_for(SIGKILL, 0.0, 0.0)

    def guard_lost(self) -> None:
        """End everything here: nobody is left who would."""
        if self.is_led_from_here and not self._finder.candidates and self._connection is not None:
            self._connection.send(EventReport(events=(SignalReceived(signal=SIGKILL, again=True),)))
        self._go(SIGKILL)

    def _go(self, number: int, at_once: bool = False) -> None:
        if self._leaving is not None:
            return
        self._leaving = number
        if self._connection is not None:
            self._connection.send(Leaving(reason=f"it was told to by {signal_name(number)}"))
        if not self._agent.is_running:
            self._agent.leave(128 + number)
        elif at_once or number == SIGKILL:
            self._agent.end_for(SIGKILL, 0.0, 0.0)
        else:
            self._agent.end_for(number, self._spec.shutdown_timeout_s, self._spec.restart_grace_s)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with the connection that `take` was given."""
        self._loop = loop
        self._life = loop.create_task(self._live())
        self._watch()

    # --- the connection

    def take(self, connection: Connection) -> None:
        """Use a connection that was let in where the nodes meet."""
        self._connection = connection
        self._finder.met(connection.where)

    async def close(self) -> None:
        """Hang up, once what was sent is on its way."""
        if self._life is not None:
            self._life.cancel()
        if self._beat is not None:
            self._beat.cancel()
        if self._connection is not None:
            self._connection.close("this node is done")

    async def _live(self) -> None:
        try:
            while True:
                if self._connection is None:
                    self._connection = await self._finder.find()
                await self._serve(self._connection)
        except JobFinished:
            self._say("the job ended while this node could not reach it")
            self._agent.leave(0)
        except RobustRunError as error:
            self._give_up(error)
        except Exception as error:
            assert self._loop is not None
            self._loop.call_exception_handler({"message": "the tie to the controller broke", "exception": error})

    async def _serve(self, connection: Connection) -> None:
        """Follow the controller until the connection ends."""
        self._where = connection.where
        self._closed = asyncio.Event()
        self._welcomed(connection.welcome)
        self._heartbeat()
        if self._unsent:  # some may have happened since the Hello was written; to say one twice changes nothing
            connection.send(EventReport(events=tuple(map(brief, self._unsent))))
            self._unsent.clear()
        connection.listen(self._on_message, self._on_closed)
        await self._closed.wait()
        if self._beat is not None:
            self._beat.cancel()
        self._connection = None
        self._agent.forget_asked()
        self._lease.forget()

    def _welcomed(self, welcome: Welcome) -> None:
        self._term = max(self._term, welcome.term)
        self._lease.times = LeaseTimes(welcome.lease_s)
        self._heartbeat_s = welcome.heartbeat_s
        self._finder.found(self._where)
        self._set_candidates(welcome.candidates)
        if self._stop is not None and self._connection is not None:
            self._connection.send(EventReport(events=(self._stop,)))
        if self._leaving is not None and self._connection is not None:
            self._connection.send(Leaving(reason=f"it was told to by {signal_name(self._leaving)}"))

    def _on_closed(self, why: str) -> None:
        if self._closed is not None:
            self._closed.set()
        if self._agent.exit_code is None and self._leaving is None:
            self._say(f"the connection to the controller ended: {why}")

    def _heartbeat(self) -> None:
        assert self._loop is not None and self._connection is not None
        self._number += 1
        now_s = self._clock.monotonic_s()
        self._lease.sent(self._number, now_s)
        self._connection.send(Heartbeat(number=self._number, now_s=now_s, usage=self._agent.usage()))
        self._beat = self._loop.call_later(self._heartbeat_s, self._heartbeat)

    def _on_message(self, message: FromController) -> None:
        if self._lease.is_over(self._clock.monotonic_s()):
            self._fence()  # what was read late may be an order that is no longer true
            return
        match message:
            case HeartbeatReply() if message.term >= self._term:
                self._lease.answered(message.number)
            case Orders() if message.term >= self._term:
                self._term = message.term
                for order in message.orders:
                    if isinstance(order, Finish) and not self.is_led_from_here:
                        self._say(_last_word(order))
                    if isinstance(order, StartAttempt):
                        self._lease.guard(running=True)
                    self._agent.obey(order)
                    if isinstance(order, EndAttempt) and not self._agent.is_running:
                        self._lease.guard(running=False)
            case CodeParts():
                self._agent.take_code(message.parts)
            case CandidateList() if message.term >= self._term:
                self._set_candidates(message.candidates)
            case JoinRefused():
                self._give_up(PlatformError(message.reason))
            case _:
                pass

    def _set_candidates(self, candidates: tuple[str, ...]) -> None:
        if candidates != self._finder.candidates:
            self._finder.candidates = candidates
            self._on_candidates(candidates)

    # --- the lease

    def _watch(self) -> None:
        assert self._loop is not None
        now_s = self._clock.monotonic_s()
        if self._lease.is_over(now_s):
            self._fence()
            self._lease.fenced(now_s)
        self._mind_silence(now_s)
        self._loop.call_later(LOOK_S, self._watch)

    def _mind_silence(self, now_s: float) -> None:
        """Say for how long the controller has been silent, as far as it is not this process that was held up."""
        if self._looked_at_s is None or now_s - self._looked_at_s > HELD_UP_S:
            self._awake_since_s = now_s
        self._looked_at_s = now_s
        silent_s = min(self._lease.silent_s(now_s), now_s - self._awake_since_s)
        self._on_silence(self._connection.where if self._connection is not None else "", silent_s)
        another_may_lead = self._many.controller_standby > 0 and silent_s > self._lease.times.look_elsewhere_s
        if another_may_lead and self._connection is not None:
            self._connection.abort(f"the controller did not answer for {silent_s:.1f} s")

    def _fence(self) -> None:
        """The controller may give this node's place to another from now on."""
        silent_s = self._lease.silent_s(self._clock.monotonic_s())
        self._agent.fence(silent_s)
        if self._connection is not None:
            self._connection.abort(f"the controller did not answer for {silent_s:.1f} s")

    # --- words

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


def _last_word(finish: Finish) -> str:
    """Return how the job ended, for the nodes that do not host the controller."""
    if finish.outcome == "done":
        return "the job is done"
    what = "the job failed" if finish.outcome == "failed" else "the job ended"
    return f"{what}: {'; '.join(filter(None, (finish.sentence, finish.reason)))}"
