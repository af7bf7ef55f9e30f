"""Guard process, which the user started: it forks the agent and outlives it, so that a SIGKILL of either leaves nothing behind.

    guard (the pid in the user's shell)      waits, forwards signals, passes the exit code on
      └─ agent                               does everything else

If the guard is killed, the agent sees its lifeline end and kills the job. If the agent is killed, the guard inherits all of
its orphans (it is their subreaper) and kills them. Workers also carry PR_SET_PDEATHSIG, for the day both are killed.
While the agent lives the guard does nothing else, but for the second of the two fences of a job of several nodes
(`start.many.second_fence`).

Where a per-user warm process runs the agent (see `start.warm.client`), the agent is that one's child: then it does what is
said above of the guard's orphans, and tells the guard.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.process_tree import Killing, Sweep, become_subreaper, send
from robust_run.launcher.start.child_end import wait_for_end
from robust_run.signals import signal_name

if TYPE_CHECKING:
    from robust_run.launcher.start.many.second_fence import Fence

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
#: Asked to end so many times, by signals not closer together than this, the guard no longer counts on the agent,
PATIENCE = 3
SAME_BREATH_S = 0.3
#: if it has had this long since the second time, at which it kills its workers: on a busy machine that takes a while.
ANSWER_S = 5.0


def hold_signals(extra_signals: Iterable[int] = ()) -> set[int]:
    """Keep the signals that the guard forwards waiting until it can; return the mask that was in force before."""
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, *extra_signals})}


@contextmanager
def held_signals(extra_signals: Iterable[int] = ()) -> Iterator[set[int]]:
    """Hold signals until the end of a `with` (see `hold_signals`)."""
    mask = hold_signals(extra_signals)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class RunsElsewhere(Protocol):
    """An agent that is no child of the guard."""

    pid: int

    def wait(self) -> tuple[int, tuple[str, ...]]:
        """Wait for its end; return its exit code as `subprocess` gives it, and what of its job could not be ended."""
        ...


def run_guarded(
    agent: Callable[[int], int],
    extra_signals: Iterable[int] = (),
    mask: Iterable[int] = (),
    elsewhere: Callable[[int], RunsElsewhere | None] = lambda _: None,
    fence: Fence | None = None,
) -> int:
    """Run `agent(lifeline)` in a child process and return its exit code; or let `elsewhere(lifeline)` run it, if it does.

    `fence` is looked at now and then, and once it is over the guard kills what the agent runs: the second of the two fences, for
    an agent that is stopped or stuck (see `start.many.second_fence`).
    `lifeline` is a descriptor: each byte on it is a signal number the guard received, its end means the guard is gone.
    Call `hold_signals` before; `mask` is what it returned. The agent starts with the signals still held.
    Raises PlatformError if no process can be made.
    """
    lifeline, forward = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    distant = elsewhere(lifeline)
    if distant is None:
        become_subreaper()  # before there is an agent, which may end at once: what it leaves is ours to end
    pid = _fork(agent, lifeline, forward) if distant is None else distant.pid
    os.close(lifeline)
    forwarder = _Forwarder(forward, pid)
    for number in {*FORWARDED, *extra_signals}:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # nohup
        signal.signal(number, lambda number, _frame: forwarder.take(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if distant is not None:
        return _conclude(pid, *distant.wait(), forwarder.gave_up_at)
    if fence is None:
        status = wait_for_end(pid)
    else:
        from robust_run.launcher.start.many.second_fence import wait  # for jobs of several nodes

        status = wait(pid, fence)
    return _conclude(pid, os.waitstatus_to_exitcode(status), _sweep(), forwarder.gave_up_at)


def _fork(agent: Callable[[int], int], lifeline: int, forward: int) -> int:
    try:
        pid = os.fork()
    except OSError as error:
        raise PlatformError(
            f"cannot start the agent process: {error}; is the process limit (ulimit -u) reached?"
        ) from error
    if pid == 0:
        os.close(forward)
        os.setpgid(0, 0)  # a Ctrl-C reaches the guard alone, which passes it on once
        _exit_with(agent, lifeline)
    return pid


def guard_is_gone(lifeline: int) -> bool:
    """Whether nobody holds the other end of a lifeline any more."""

    poll = select.poll()
    poll.register(lifeline, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _exit_with(agent: Callable[[int], int], lifeline: int) -> None:
    """Never returns: the child must not run on in the guard's code, and interpreter teardown would only cost time."""
    exit_code = 70
    try:
        exit_code = agent(lifeline)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


class Requests:
    """How often the agent was asked to end, and whether it has had its time to do so."""

    def __init__(self) -> None:
        self._at_s: list[float] = []

    def is_out_of_patience(self, now_s: float) -> bool:
        """Take note of one more request; True: it is to be killed."""
        if not self._at_s or now_s - self._at_s[-1] >= SAME_BREATH_S:
            self._at_s.append(now_s)
        return len(self._at_s) >= PATIENCE and now_s - self._at_s[PATIENCE - 2] >= ANSWER_S


class _Forwarder:
    """Passes signals on; kills an agent that answers nothing although it was asked to end again and again."""

    def __init__(self, descriptor: int, pid: int) -> None:
        self._descriptor = descriptor
        self._pid = pid
        self._requests = Requests()
        self._first = 0
        self.gave_up_at = 0
        """The signal that asked it to end first, once it was killed because it did not; 0: it was not."""

    def take(self, number: int) -> None:
        """Pass a signal on."""
        try:
            os.write(self._descriptor, bytes([number]))
        except OSError:
            return  # the agent is gone; its exit is about to be seen
        if number not in ENDING:
            return
        self._first = self._first or number
        if self._requests.is_out_of_patience(time.monotonic()):
            self.gave_up_at = self._first
            send(self._pid, signal.SIGKILL)


def _conclude(pid: int, exit_code: int, leftovers: Sequence[str], gave_up_at: int = 0) -> int:
    """Return the launcher's exit code; say what is to be known of an agent that did not end by itself.

    `gave_up_at`: the signal that it was killed for not answering. A SIGKILL that somebody else sent is told by its code, 137.
    """
    if exit_code >= 0 and not leftovers:
        return exit_code
    if exit_code < 0:
        died = f"was killed by {signal_name(-exit_code)}"
        if exit_code == -signal.SIGKILL and gave_up_at:
            died = f"did not answer {signal_name(gave_up_at)} within {ANSWER_S:g} s and was killed"
            exit_code = -gave_up_at
        print(f"robust-run: the agent (pid {pid}) {died}; its workers were ended", file=sys.stderr)
    for name in leftovers:
        print(f"robust-run: {name} could not be ended; it may hold a device", file=sys.stderr)
    return 128 - exit_code if exit_code < 0 else exit_code


def _sweep() -> list[str]:
    """Kill everything below this process; return what could not be killed in time."""
    killing = Killing(Sweep(os.getpid(), spare=lambda: (), owned=lambda: ()), time.monotonic())
    left, more = killing.round(time.monotonic())
    while more:
        time.sleep(0.001)
        left, more = killing.round(time.monotonic())
    return [f"process {status.pid} ({status.name}, state {status.state})" for status in left]
