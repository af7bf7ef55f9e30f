"""The agent: carries out what the core decides, and tells it what happens. Holds the loop, the signals and the last word.

The first workers are started before the event loop exists, because importing asyncio takes longer than starting them.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from robust_run.errors import InternalError
from robust_run.launcher import core
from robust_run.launcher.attempt import Attempt
from robust_run.launcher.incidents import IncidentBook
from robust_run.launcher.types import (
    AttemptEnded,
    AttemptStarted,
    EndAttempt,
    Event,
    Finish,
    GuardLost,
    RecordIncident,
    SignalPassedOn,
    SignalReceived,
    SignalWorkers,
    StartAttempt,
    Tick,
    WakeAt,
    WarmReady,
    WarmRefused,
)
from robust_run.signals import signal_name

if TYPE_CHECKING:
    import asyncio
    import socket

    from robust_run.launcher.journal import Journal
    from robust_run.launcher.node import Node
    from robust_run.launcher.types import Action

#: Signals that end the job whatever `--signals-to-handle` says.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Signals that are the workers' business unless the user lists them as ending ones.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

#: How long the journal may take to reach the disk before the next attempt starts without waiting for it.
DURABLE_S = 2.0

#: Ending signals closer together than this are one.
SAME_BREATH_S = 0.3

HOUSEKEEPING_S = 1.0
#: Orphans wait this many rounds of housekeeping for their exit status to be collected: looking costs a scan of /proc.
ORPHAN_ROUNDS = 10


class Agent:
    """One job on one node, from its first worker to its exit code."""

    def __init__(self, policy: core.Policy, node: Node, journal: Journal, book: IncidentBook) -> None:
        self.finish: Finish | None = None
        self.state = core.JobState()
        self._policy = policy
        self._node = node
        self._journal = journal
        self._book = book
        self._attempt: Attempt | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._pending: deque[Event] = deque()
        self._busy = False
        self._asked: dict[str, float] = {}
        self._spared: set[int] = set()
        self._pending_end_s: float | None = None
        self._bug: BaseException | None = None

    # --- events in, actions out ---

    def tell(self, event: Event) -> None:
        """Take in what happened and carry out what follows from it; events told meanwhile are taken in turn."""
        self._pending.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._pending:
                self._take(self._pending.popleft())
        finally:
            self._busy = False

    def _take(self, event: Event) -> None:
        now_s = self._node.clock.monotonic_s()
        self._journal.event(event, now_s)
        self._note(event)
        self.state, actions = core.step(self._policy, self.state, event, now_s)
        for action in actions:
            self._journal.action(action, now_s)
        for action in actions:
            self._perform(action, now_s)

    def _note(self, event: Event) -> None:
        """Tell the parts that need to know, and the user where it matters to him; none of this decides anything."""
        match event:
            case AttemptStarted() if event.attempt > 0:
                self._book.relaunched(event)
            case AttemptEnded():
                self._node.starter.learn(event)
            case WarmReady():
                if self.state.attempt == 0:
                    self._node.restock(0, 0.0)
                for module in event.skipped:
                    self._node.say(f"--preload: left out {module}")
            case WarmRefused() if event.module:
                self._node.say(f"--preload: left out {event.module}: after it, {event.reason}")
            case WarmRefused():
                self._node.say(f"later attempts start from nothing: {event.reason}")
            case _:
                pass

    def _perform(self, action: Action, now_s: float) -> None:
        match action:
            case StartAttempt():
                self._start_attempt(action.attempt)
            case SignalWorkers():
                self._current.signal(action.signal)
                self._journal.sync_soon()
            case EndAttempt():
                self._journal.sync_soon()
                self._end_attempt(action.grace_s)
            case WakeAt():
                self._wake_at(action.at_s - now_s)
            case RecordIncident():
                self._book.record(action, self._later)
            case Finish():
                self.finish = action
                if self._done is not None:
                    self._done.set()

    @property
    def _current(self) -> Attempt:
        assert self._attempt is not None
        return self._attempt

    def _start_attempt(self, number: int) -> None:
        if number > 0:
            self._journal.wait_durable(DURABLE_S)
        self._attempt = Attempt(number, self._node, self.tell)
        self._attempt.start()
        if self._loop is not None:
            self._attempt.watch(self._loop)
            self._watch_store()

    def _end_attempt(self, grace_s: float) -> None:
        if self._loop is None:
            self._pending_end_s = grace_s  # the loop is about to exist; nothing can be awaited before it does
        else:
            self._current.end(grace_s)

    def _wake_at(self, delay_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._later(max(delay_s, 0.0), lambda: self.tell(Tick()))

    def _later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        assert self._loop is not None
        return self._loop.call_later(delay_s, call)

    # --- the loop ---

    def run(self, lifeline: int) -> Finish:
        """Run until the job is over; `lifeline` is the guard's pipe (see `guard`). Raises InternalError.

        A fault of ours must end the job rather than leave it unwatched: the guard then ends its processes.
        """
        import asyncio

        asyncio.run(self._run(lifeline))
        if self._bug is not None:
            raise InternalError(f"a fault of robust-run ended the job: {self._bug!r}; please report it") from self._bug
        assert self.finish is not None
        return self.finish

    async def _run(self, lifeline: int) -> None:
        import asyncio

        loop = self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        loop.set_exception_handler(self._on_bug)
        os.set_blocking(lifeline, False)
        loop.add_reader(lifeline, self._read_lifeline, lifeline)
        self._handle_signals(loop)
        self._node.router.attach(loop)
        self._watch_store()
        self._node.starter.attach(self._watch_socket)
        if self._attempt is not None:
            self._attempt.watch(loop)
        if self._pending_end_s is not None:
            self._current.end(self._pending_end_s)
        if self.finish is not None:
            self._done.set()
        self._keep_house()
        await self._done.wait()
        self._book.look_for_first_step()
        self._book.flush()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._bug = context.get("exception") or InternalError(str(context.get("message")))
        loop.default_exception_handler(context)
        if self._done is not None:
            self._done.set()

    def _keep_house(self, rounds: int = 1) -> None:
        self._book.look_for_first_step()
        if self._attempt is not None and self.state.phase == "running":
            age_s = self._node.clock.monotonic_s() - self._attempt.started_at_s
            self._node.launch_warm(age_s)
            self._node.learn_modules()
            self._node.restock(self._attempt.number, age_s)
        if rounds % ORPHAN_ROUNDS == 0 and self._attempt is not None and self.state.phase == "running":
            self._attempt.reap_orphans()
        self._later(HOUSEKEEPING_S, lambda: self._keep_house(rounds + 1))

    def _watch_socket(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        assert self._loop is not None
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            if call is not None:
                self._loop.add_reader(sock.fileno(), call)

    def _watch_store(self) -> None:
        """Listen to the store's process, which may be a new one."""
        assert self._loop is not None
        descriptor = self._node.store.fileno()
        if descriptor is not None:
            self._loop.add_reader(descriptor, self._read_store, descriptor)

    def _read_store(self, descriptor: int) -> None:
        assert self._loop is not None
        if self._node.store.fileno() != descriptor:
            self._loop.remove_reader(descriptor)
            return
        self._loop.remove_reader(descriptor)
        self._node.store.read()
        self._watch_store()

    # --- signals ---

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        ending = {*ENDING, *self._node.spec.end_signals}
        for number in {*ending, *PASSED_ON, signal.SIGWINCH}:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            loop.add_signal_handler(number, self._on_signal, number, "direct")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())

    def _read_lifeline(self, lifeline: int) -> None:
        try:
            received = os.read(lifeline, 64)
        except BlockingIOError:
            return
        for number in received:
            self._on_signal(number, "guard")
        if not received:
            assert self._loop is not None
            self._loop.remove_reader(lifeline)
            self.tell(GuardLost())

    def _on_signal(self, number: int, source: str) -> None:
        """A scheduler may signal the guard and the agent both: only a second one of the same kind counts as asking again."""
        if number == signal.SIGWINCH:
            self._node.router.resize()
            if self._attempt is not None:
                self._attempt.tell_resized()
        elif number in ENDING or number in self._node.spec.end_signals:
            again = self._is_asked_again(source)
            if not self.state.stop_signal:
                self._say_ending(number)
            self.tell(SignalReceived(signal=number, again=again))
        else:
            self._pass_on(number)

    def _is_asked_again(self, source: str) -> bool:
        """Whether somebody has waited and asks once more; `timeout` and schedulers send a signal twice in one breath."""
        now_s = self._node.clock.monotonic_s()
        first_at_s = self._asked.setdefault(source, now_s)
        return now_s - first_at_s >= SAME_BREATH_S

    def _say_ending(self, number: int) -> None:
        timeout_s = self._policy.shutdown_timeout_s
        more = "; again to end them at once" if number == signal.SIGINT else ""
        self._node.say(f"{signal_name(number)}: passed to the workers, which have {timeout_s:g} s to end{more}")

    def _pass_on(self, number: int) -> None:
        if self._attempt is None:
            return
        told = self._attempt.pass_on(number)
        self.tell(SignalPassedOn(signal=number, ranks=tuple(told)))
        spared = sorted(set(self._attempt.living()) - set(told))
        if spared and number not in self._spared:
            self._spared.add(number)
            ranks = ", ".join(map(str, spared))
            self._node.say(
                f"{signal_name(number)} was not passed to rank {ranks}: no handler there, it would have died of it"
            )
