"""The process the user started: it forks the agent and outlives it, so that a SIGKILL of either leaves nothing behind.

    guard (the pid in the user's shell)      waits, forwards signals, passes the exit code on
      └─ agent                               does everything else

If the guard is killed, the agent sees its lifeline end and kills the job. If the agent is killed, the guard inherits all of
its orphans (it is their subreaper) and kills them. Workers also carry PR_SET_PDEATHSIG, for the day both are killed.
The guard never reads, decides or prints while the agent lives.

Where a per-user warm process runs the agent (see `warm.client`), the agent is that one's child: then it does what is said above
of the guard's orphans, and tells the guard.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from robust_run.errors import PlatformError
from robust_run.launcher.process_tree import Sweep, become_subreaper
from robust_run.signals import signal_name

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)

#: How long the guard tries to end a dead agent's tree before it reports what it could not end.
SWEEP_S = 10.0


class RunsElsewhere(Protocol):
    """An agent that is no child of the guard."""

    pid: int

    def wait(self) -> tuple[int, tuple[str, ...]]:
        """Wait for its end; return its exit code as `subprocess` gives it, and what of its job could not be ended."""
        ...


def run_guarded(
    agent: Callable[[int], int],
    extra_signals: Iterable[int] = (),
    elsewhere: Callable[[int], RunsElsewhere | None] = lambda _: None,
) -> int:
    """Run `agent(lifeline)` in a child process and return its exit code; or let `elsewhere(lifeline)` run it, if it does.

    `lifeline` is a descriptor: each byte on it is a signal number the guard received, its end means the guard is gone.
    Raises PlatformError if no process can be made.
    """
    lifeline, forward = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    distant = elsewhere(lifeline)
    pid = _fork(agent, lifeline, forward) if distant is None else distant.pid
    os.close(lifeline)
    for number in {*FORWARDED, *extra_signals}:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # nohup
        signal.signal(number, lambda number, _frame: _forward(forward, number))
    if distant is not None:
        return _conclude(pid, *distant.wait())
    become_subreaper()
    _, status = os.waitpid(pid, 0)
    return _conclude(pid, os.waitstatus_to_exitcode(status), _sweep())


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
    import select

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


def _forward(descriptor: int, number: int) -> None:
    try:
        os.write(descriptor, bytes([number]))
    except OSError:
        return  # the agent is gone; its exit is about to be seen


def _conclude(pid: int, exit_code: int, leftovers: Sequence[str]) -> int:
    """Return the launcher's exit code; say what is to be known of an agent that did not end by itself."""
    if exit_code >= 0 and not leftovers:
        return exit_code
    if exit_code < 0:
        print(
            f"robust-run: the agent (pid {pid}) died of {signal_name(-exit_code)}; its workers were ended",
            file=sys.stderr,
        )
    for name in leftovers:
        print(f"robust-run: {name} could not be ended; it may hold a device", file=sys.stderr)
    return 128 - exit_code if exit_code < 0 else exit_code


def _sweep() -> list[str]:
    """Kill everything below this process; return what could not be killed in time."""
    sweep = Sweep(os.getpid(), spare=lambda: (), owned=lambda: ())
    give_up_at_s = time.monotonic() + SWEEP_S
    while left := sweep.round(signal.SIGKILL):
        if time.monotonic() > give_up_at_s:
            return [f"process {status.pid} ({status.name}, state {status.state})" for status in left]
        time.sleep(0.001)
    return []
