"""Signal handling of an agent: which of them end the job, which are the workers' business, and when a sender asks again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from robust_run.clock import Clock
from robust_run.launcher.model.job import JobSpec
from robust_run.signals import signal_name

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.model.links import ControllerLink

#: Signals that always end the job, with any `--signals-to-handle`.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Signals that are the workers' business unless the user lists them as ending ones.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

#: Ending signals closer together than this are one.
SAME_BREATH_S = 0.3


class Reacts(Protocol):
    """Who acts on signals."""

    def told_to_end(self, number: int, *, again: bool) -> None:
        """A signal ends the job, or this node's part in it."""
        ...

    def guard_lost(self) -> None:
        """The process the user started is gone."""
        ...

    def resized(self) -> None:
        """The terminal has another size."""
        ...

    def pass_on(self, number: int) -> tuple[list[int], list[int]]:
        """Hand a signal to the workers that handle it; return their ranks, and those of the workers that do not."""
        ...


class SignalWatcher(Protocol):
    """Who knows what the signals of a scheduler mean."""

    def on_signal(self, number: int, *, ends: bool) -> bool:
        """Take note of a signal; True: it is not to be passed on to the workers, which have it already."""
        ...


if TYPE_CHECKING:
    Scheduler = Callable[[Reacts, Node, ControllerLink, asyncio.AbstractEventLoop], SignalWatcher]
    """Begins what a scheduler (Slurm) wants to know and to say while a job runs. It is handed in: the launcher knows none."""


class AgentSignals:
    """Takes in signals of this process, and those that the guard passes on."""

    def __init__(self, agent: Reacts, spec: JobSpec, clock: Clock, say: Callable[[str], None]) -> None:
        self._agent = agent
        self._spec = spec
        self._clock = clock
        self._say = say
        self._is_stopping = False
        self._asked: dict[str, float] = {}
        self._spared: set[int] = set()
        self.watch: SignalWatcher | None = None
        """Whom a scheduler's signals mean more to; it gets all of them too."""

    def attach(self, loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
        """Handle signals from now on, those that were held back first; `lifeline` is the guard's pipe (see `guard`)."""
        os.set_blocking(lifeline, False)
        loop.add_reader(lifeline, self._read_lifeline, loop, lifeline)
        ending = {*ENDING, *self._spec.end_signals}
        for number in {*ending, *PASSED_ON, signal.SIGWINCH}:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            loop.add_signal_handler(number, self._on_signal, number, "direct")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())

    def _read_lifeline(self, loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
        try:
            received = os.read(lifeline, 64)
        except BlockingIOError:
            return
        for number in received:
            self._on_signal(number, "guard")
        if not received:
            loop.remove_reader(lifeline)
            self._agent.guard_lost()

    def _on_signal(self, number: int, source: str) -> None:
        """A scheduler may signal the guard and the agent both: only a second one of the same kind counts as asking again."""
        if number == signal.SIGWINCH:
            self._agent.resized()
            return
        ends = number in ENDING or number in self._spec.end_signals
        if self.watch is not None and self.watch.on_signal(number, ends=ends):
            return
        if ends:
            again = self._is_asked_again(source)
            if not self._is_stopping:
                self._say_ending(number)
            self._is_stopping = True
            self._agent.told_to_end(number, again=again)
        else:
            self._pass_on(number)

    def _is_asked_again(self, source: str) -> bool:
        """Whether the sender has waited and asks once more; `timeout` and schedulers send a signal twice in one breath."""
        now_s = self._clock.monotonic_s()
        first_at_s = self._asked.setdefault(source, now_s)
        return now_s - first_at_s >= SAME_BREATH_S

    def _say_ending(self, number: int) -> None:
        timeout_s, many = self._spec.shutdown_timeout_s, self._spec.many
        if number == signal.SIGTERM and many is not None and many.on_sigterm == "node":
            self._say(f"{signal_name(number)}: the workers go on for a moment, and have {timeout_s:g} s to end then")
            return
        more = "; again to end them at once" if number == signal.SIGINT else ""
        self._say(f"{signal_name(number)}: passed to the workers, which have {timeout_s:g} s to end{more}")

    def _pass_on(self, number: int) -> None:
        _, spared = self._agent.pass_on(number)
        if spared and number not in self._spared:
            self._spared.add(number)
            ranks = ", ".join(map(str, spared))
            self._say(
                f"{signal_name(number)} was not passed to rank {ranks}: no handler there, it would have died of it"
            )
