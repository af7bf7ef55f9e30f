"""The processes of this machine as /proc shows them, and how to end all of a tree, escaped grandchildren included.

Every supervisor here makes itself a subreaper, so a process whose parent dies becomes its child instead of init's: nothing
that a worker starts can leave the tree, also in a session of its own. Ending a tree is therefore: kill, look again, until
nothing is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

PR_SET_PDEATHSIG = 1
#: Of the Yama security module: who may look at this process, and everything below that one.
PR_SET_PTRACER = 0x59616D61
PR_SET_CHILD_SUBREAPER = 36

#: Looks in a row that must find nothing.
EMPTY_LOOKS = 3
#: How long processes that clean up after others may take once these are gone.
CLEANERS_S = 1.0
#: How long SIGKILLed processes may take to vanish before they are reported (uninterruptible sleep, another user's).
KILL_S = 10.0
#: How long a killed one is waited for: where it hangs in the kernel (a dead file system), no signal ends it.
GROUP_GONE_S = 5.0
#: Rounds of killing one by one after which groups are killed.
STUBBORN_ROUNDS = 50


def prctl(option: int, value: int) -> None:
    """Call prctl(2) on this process. Raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


def become_subreaper() -> None:
    """Adopt orphans of this process's tree from now on. Raises OSError."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


class ProcessStatus:
    """One process as /proc/PID/status tells it at one moment."""

    __slots__ = ("_signals", "name", "parent", "pid", "state")

    def __init__(self, pid: int, text: str) -> None:
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        self.pid = pid
        self.name = fields.get("Name", "?")
        self.parent = int(fields.get("PPid", "0"))
        self.state = fields.get("State", "?")[:1]
        self._signals = [int(fields.get(key, "0"), 16) for key in ("SigCgt", "SigIgn", "SigBlk")]

    @property
    def is_gone(self) -> bool:
        """Whether only its exit status is left."""
        return self.state in "ZX"

    def survives(self, signal_number: int) -> bool:
        """Whether the signal would be caught, ignored or wait, rather than end the process by default."""
        return any(mask >> (signal_number - 1) & 1 for mask in self._signals)

    def ignores(self, signal_number: int) -> bool:
        """Whether the process takes no notice of the signal."""
        return bool(self._signals[1] >> (signal_number - 1) & 1)


def read_status(pid: int) -> ProcessStatus | None:
    """Return the process's status, None if there is no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return ProcessStatus(pid, file.read())
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """Return the direct children of a process, of all its threads."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}") and not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
            return _children_by_scan(pid)  # a kernel without CONFIG_PROC_CHILDREN
    except OSError:
        pass
    return found


def _children_by_scan(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            status = read_status(int(entry))
            if status is not None and status.parent == pid:
                found.append(status.pid)
    return found


def descendants(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Return all processes below `pid`, parents before children, without the subtrees of `spare`."""
    found: list[int] = []
    queue = [pid]
    while queue:
        below = [child for child in children(queue.pop(0)) if child not in spare]
        found += below
        queue += below
    return found


def send(pid: int, signal_number: int) -> bool:
    """Send a signal; False if there is no such process or it is not ours to signal. 0 and -1 are no numbers of a process."""
    if pid <= 0:  # to the kernel: the own group, everybody
        return False
    try:
        os.kill(pid, signal_number)
    except OSError:
        return False
    return True


def send_group(group: int, signal_number: int) -> bool:
    """Send a signal to a process group; False if there is none or it is not ours."""
    if group <= 1:  # to the kernel: the own group, everybody
        return False
    try:
        os.killpg(group, signal_number)
    except OSError:
        return False
    return True


def _group_of(pid: int) -> int:
    """Return the process group of a process, -1 if there is no such process."""
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def reap(pid: int) -> None:
    """Collect the exit status of an adopted child, if it is one and has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        return


class Sweep:
    """Ends what is left of a tree, a round at a time, so that the caller decides how to wait between rounds.

    `spare` gives the processes whose subtrees must live; `owned` those whose exit statuses another component collects.
    """

    def __init__(self, root: int, spare: Callable[[], Collection[int]], owned: Callable[[], Collection[int]]) -> None:
        self._root = root
        self._spare = spare
        self._owned = owned

    def left(self) -> list[ProcessStatus]:
        """Return the processes still running; adopted ones that have ended are reaped on the way.

        A process can have died after its child was adopted and before we looked there, so nothing is believed only when seen
        several times in a row.
        """
        running: list[ProcessStatus] = []
        for _ in range(EMPTY_LOOKS):
            running = self._look()
            if running:
                break
        return running

    def _look(self) -> list[ProcessStatus]:
        running = []
        owned = self._owned()
        for pid in descendants(self._root, self._spare()):
            status = read_status(pid)
            if status is None:
                continue
            if status.is_gone:
                if status.parent == self._root and pid not in owned:
                    reap(pid)
                continue
            running.append(status)
        return running

    def ask(self) -> list[ProcessStatus]:
        """Send SIGTERM to everything that is left, and SIGCONT so that stopped processes act on it; return what is left."""
        running = self.left()
        for status in running:
            if not is_cleaner(status.pid):
                send(status.pid, signal.SIGTERM)
                send(status.pid, signal.SIGCONT)
        return running

    def kill(self, *, cleaners: bool) -> list[ProcessStatus]:
        """Kill everything that is left, with or without those that clean up after the others; return what is left.

        Cleaners end by themselves as soon as those they watch are gone, and free what these have left in shared memory.
        """
        ours = {os.getpgid(0), _group_of(self._root)}
        for pid in descendants(self._root, self._spare()):
            if cleaners:
                self._kill_group(pid, ours)
            if cleaners or not is_cleaner(pid):
                send(pid, signal.SIGKILL)
        return self.left()

    @staticmethod
    def _kill_group(pid: int, ours: Collection[int]) -> None:
        """Kill a process's group in one stroke: the kernel lets no member fork meanwhile.

        One that forks and ends, over and over, is hardly ever met alive by its own number.
        """
        group = _group_of(pid)
        if group > 0 and group not in ours:
            send_group(group, signal.SIGKILL)


class Killing:
    """Kills what is left, a round at a time: first all but the cleaners, which get a moment, then them too."""

    def __init__(self, sweep: Sweep, now_s: float) -> None:
        self._sweep = sweep
        self._cleaners_end_at_s = now_s + CLEANERS_S
        self._give_up_at_s = now_s + KILL_S
        self._rounds = 0

    def round(self, now_s: float) -> tuple[list[ProcessStatus], bool]:
        """Return what is left, and whether to come again in a moment."""
        self._rounds += 1
        left = self._sweep.kill(cleaners=now_s >= self._cleaners_end_at_s)
        if left and not all(is_cleaner(status.pid) for status in left) and self._rounds > STUBBORN_ROUNDS:
            self._cleaners_end_at_s = now_s  # whole groups from now on, also with others in them
        return left, bool(left) and now_s < self._give_up_at_s


def is_cleaner(pid: int) -> bool:
    """Whether a process frees what others leave in shared memory: multiprocessing's resource tracker, torch's manager."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command_line = file.read(4096)
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in command_line or b"torch_shm_manager" in command_line


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, and what it has started: sites have scripts where `scontrol` was."""
    with suppress(OSError):
        os.killpg(process.pid, 9)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    from subprocess import TimeoutExpired

    with suppress(TimeoutExpired):
        process.wait(GROUP_GONE_S)
