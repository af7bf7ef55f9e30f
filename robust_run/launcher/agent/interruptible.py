"""Interruptible set-up work before a job's first process: a signal ends it."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from robust_run.errors import InternalError, PlatformError
from robust_run.launcher.agent.signals import ENDING
from robust_run.launcher.model.job import JobSpec
from robust_run.signals import signal_name

T = TypeVar("T")

#: How often signals that were sent to this process alone are looked for meanwhile.
LOOK_S = 0.2


class Interrupted(PlatformError):  # noqa: N818 - a signal, no error
    """A signal came before the work was done. Its exit code is that of a job that the signal ended."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{signal_name(number)} came before {what} was there; nothing was started")
        self.exit_code = 128 + number


def unless_interrupted(
    work: Callable[[], T],
    spec: JobSpec,
    lifeline: int,
    what: str,
    give_up: Callable[[threading.Thread], None] | None = None,
) -> T:
    """Do the work in a thread, and wait for it or for a signal. Raises what it raises, or `Interrupted`.

    Ending signals must be held (see `guard.hold_signals`); `lifeline`: see `guard.run_guarded`. `what`: "the image". What a
    signal leaves half made ends with this process; `give_up` is called with the thread before `Interrupted` is raised.
    """
    made: list[T] = []
    failed: list[BaseException] = []
    over, tell = os.pipe()

    def within() -> None:
        try:
            made.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            os.write(tell, b".")

    thread = threading.Thread(target=within, daemon=True)
    thread.start()
    number = _wait(over, lifeline, {*ENDING, *map(signal.Signals, spec.end_signals)})
    if number:
        if give_up is not None:
            give_up(thread)
        raise Interrupted(number, what)
    thread.join()
    os.close(over)
    os.close(tell)
    if failed:
        raise failed[0]
    if not made:
        raise InternalError(f"{what} was neither made nor refused")
    return made[0]


def _wait(over: int, lifeline: int, ending: set[signal.Signals]) -> int:
    """Wait until a byte can be read. Return the signal that came before, or SIGKILL if the guard is gone; 0: none."""
    while True:
        readable, _, _ = select.select([over, lifeline], [], [], LOOK_S)
        if over in readable:
            return 0
        if lifeline in readable:
            received = os.read(lifeline, 64)
            if not received:
                return signal.SIGKILL
            if numbers := [number for number in received if number in ending]:
                return numbers[0]
        if pending := signal.sigpending() & ending:
            if signal.SIGHUP in pending and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
                pending.discard(signal.SIGHUP)
            if pending:
                return int(min(pending))
