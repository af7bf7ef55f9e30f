"""The processes of this machine as /proc shows them, and how to end all of a tree, escaped grandchildren included.

Every supervisor here makes itself a subreaper, so a process whose parent dies becomes its child instead of init's: nothing
that a worker starts can leave the tree, whatever sessions it opens. Ending a tree is therefore: kill, look again, until
nothing is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


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
    """Send a signal; False if there is no such process or it is not ours to signal."""
    try:
        os.kill(pid, signal_number)
    except OSError:
        return False
    return True


def send_group(group: int, signal_number: int) -> bool:
    """Send a signal to a process group; False if there is none or it is not ours."""
    try:
        os.killpg(group, signal_number)
    except OSError:
        return False
    return True


def reap(pid: int) -> None:
    """Collect the exit status of an adopted child, if it is one and has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        return


class Sweep:
    """Ends what is left of a tree, a round at a time, so that the caller decides how to wait between rounds.

    `spare` gives the processes whose subtrees must live; `owned` those whose exit statuses belong to somebody else.
    """

    def __init__(self, root: int, spare: Callable[[], Collection[int]], owned: Callable[[], Collection[int]]) -> None:
        self._root = root
        self._spare = spare
        self._owned = owned

    def left(self) -> list[ProcessStatus]:
        """Return the processes still running; adopted ones that have ended are reaped on the way."""
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

    def round(self, signal_number: int) -> list[ProcessStatus]:
        """Signal everything that is left and return it; SIGCONT follows so that stopped processes act on it."""
        if signal_number == signal.SIGKILL:
            self._kill()
            return self.left()
        running = self.left()
        for status in running:
            send(status.pid, signal_number)
            send(status.pid, signal.SIGCONT)
        return running

    def _kill(self) -> None:
        """Kill at once, before anything else is looked up, whole process groups first.

        A process that forks and ends, over and over, is hardly ever met alive by its own number; but the kernel kills a group
        in one stroke, and lets none of its members fork meanwhile.
        """
        ours = os.getpgid(0)
        for pid in descendants(self._root, self._spare()):
            try:
                group = os.getpgid(pid)
            except OSError:
                continue
            if group != ours:
                send_group(group, signal.SIGKILL)
            send(pid, signal.SIGKILL)
