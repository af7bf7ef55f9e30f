"""Starts workers and helper processes, sees their ends, signals them. Knows nothing of why.

A worker is the leader of its own session; everything it starts is in our tree, because we are a subreaper. It dies with us
(PR_SET_PDEATHSIG), also if we are killed. Its end is seen through a pidfd, not by polling.
"""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.process_tree import (
    PR_SET_PDEATHSIG,
    PR_SET_PTRACER,
    children,
    read_status,
    send,
    send_group,
)

#: Signals that workers start with in their default state, also if the launcher or the shell before it changed them.
RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTTOU, signal.SIGTTIN)
MAY_IGNORE = (signal.SIGUSR1, signal.SIGUSR2)


class ChildSetup:
    """What happens in a new process between fork and exec. Made once, before any thread exists."""

    def __init__(self, mask: Iterable[int]) -> None:
        import ctypes

        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._parent = os.getpid()
        self._mask = tuple(mask)
        # A program starts with what we ignore ignored, and with what we handle not: under Slurm we ignore, then handle these.
        self._ignored = [each for each in MAY_IGNORE if signal.getsignal(each) == signal.SIG_IGN]

    def __call__(self, cpus: Collection[int] = ()) -> None:
        """Run in the child: die with the parent, default signals, the original signal mask, these CPUs if any."""
        self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:
            os._exit(128 + signal.SIGKILL)  # the parent died before the line above could see it
        self._prctl(PR_SET_PTRACER, self._parent, 0, 0, 0)  # its py-spy is our sibling; fails where it is not needed
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for number in self._ignored:
            signal.signal(number, signal.SIG_IGN)
        if cpus:
            os.sched_setaffinity(0, cpus)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


class Worker:
    """One started process: a rank, or a helper of ours."""

    def __init__(self, pid: int, poll: Callable[[], int | None], rank: int, name: str) -> None:
        self.rank = rank
        self.name = name
        self.pid = pid
        self.exit_code: int | None = None
        self.exited_at_s = 0.0
        self.signalled_at_s: float | None = None
        self.pidfd = -1
        self._poll = poll

    def watch(self) -> int:
        """Return a descriptor that becomes readable when the process ends, -1 if this kernel has none."""
        if self.pidfd < 0 and self.exit_code is None:
            try:
                self.pidfd = os.pidfd_open(self.pid)
            except (OSError, AttributeError):
                return -1
        return self.pidfd

    def poll(self, now_s: float) -> bool:
        """Whether the process has ended; its exit code is kept and the moment noted the first time."""
        if self.exit_code is None:
            self.exit_code = self._poll()
            if self.exit_code is not None:
                self.exited_at_s = now_s
        return self.exit_code is not None

    def ends_within(self, seconds: float, now_s: float) -> bool:
        """Whether the process ends in so many seconds; for one that is known to be ending."""
        import select

        if not self.poll(now_s) and (descriptor := self.watch()) >= 0:
            select.select([descriptor], [], [], seconds)
        return self.poll(now_s)

    def close(self) -> None:
        """Give the pidfd back."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def signal(self, number: int, now_s: float) -> None:
        """Signal the process and its group, and let it run if it was stopped, so that it can act on it."""
        if self.exit_code is not None:
            return
        if self.signalled_at_s is None:
            self.signalled_at_s = now_s
        send_group(self.pid, number)
        send_group(self.pid, signal.SIGCONT)

    def pass_on(self, number: int) -> list[int]:
        """Hand a signal to the nearest processes that have a handler for it; return their pids, empty if none has.

        A process without one would die of it, and with it the job, so it is spared; below it there may be one that has
        (a shell script that runs the training program).
        """
        if self.exit_code is not None:
            return []
        told, queue = [], [self.pid]
        while queue:
            status = read_status(queue.pop(0))
            if status is None or status.is_gone:
                continue
            if not status.survives(number):
                queue += children(status.pid)
            elif send(status.pid, number):
                told.append(status.pid)
        return told


def start(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    setup: Callable[[], None],
    *,
    rank: int = -1,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    keep: tuple[int, ...] = (),
) -> Worker:
    """Start a process in its own session. Raises PlatformError naming what the system refused."""
    name = f"rank {rank}" if rank >= 0 else os.path.basename(argv[0])
    with warnings.catch_warnings():
        # Python 3.12 warns that a fork beside threads may deadlock; the code above takes no lock between fork and exec.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=keep,
                start_new_session=True,
                preexec_fn=setup,  # noqa: PLW1509 - see above
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise PlatformError(f"cannot start {name} ({argv[0]}): {error}") from error
    return Worker(process.pid, process.poll, rank, name)


def adopt(pid: int, rank: int) -> Worker:
    """Return a worker that we did not start but whose parent we became."""
    return Worker(pid, lambda: _exit_code_of(pid), rank, f"rank {rank}")


class Helpers:
    """Processes of ours that outlive an attempt. Their parent is this process; what they say goes to one log."""

    def __init__(self, setup: Callable[[], None], log: str, now_s: Callable[[], float]) -> None:
        self._setup, self._log, self._now_s = setup, log, now_s
        self._running: list[Worker] = []

    def log_to(self, log: str) -> None:
        """Name the file for what those say that are started from now on."""
        self._log = log

    def adopt(self, *pids: int) -> None:
        """Take over processes that we did not start but whose parent we became."""
        self._running += [adopt(pid, -1) for pid in pids]

    def start(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        """Start one that inherits the descriptors `keep`; return its pid. Raises PlatformError."""
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            helper = start(argv, env, self._setup, stdin=nothing, stdout=log, stderr=log, keep=keep)
        finally:
            os.close(log)
            os.close(nothing)
        self._running.append(helper)
        return helper.pid

    def pids(self) -> list[int]:
        """Return those that run; ended ones are collected on the way."""
        now_s = self._now_s()
        self._running = [helper for helper in self._running if not helper.poll(now_s)]
        return [helper.pid for helper in self._running]

    def pids_uncollected(self) -> list[int]:
        """Return those whose end nobody has seen yet; none is collected."""
        return [helper.pid for helper in self._running if helper.exit_code is None]

    def exit_code(self, pid: int | None, within_s: float) -> int | None:
        """Return the exit code of one that is known to be ending, None if it has none in that time, or is none of ours."""
        helper = next((each for each in self._running if each.pid == pid), None)
        return helper.exit_code if helper is not None and helper.ends_within(within_s, self._now_s()) else None

    def kill(self) -> None:
        """Kill all, with their groups."""
        for helper in self._running:
            helper.signal(signal.SIGKILL, self._now_s())


def _exit_code_of(pid: int) -> int | None:
    """Return the exit code of an adopted child, None while it runs. Called until it has an answer, not after."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 128 + signal.SIGKILL  # another waiter collected it; it is gone, and not well
    return os.waitstatus_to_exitcode(status) if ended else None


def abandon(pid: int | None) -> None:
    """Kill a process that did not become what it should."""
    if pid is not None:
        send(pid, signal.SIGKILL)
