"""How much the CPUs of this node work for others than the check programs: what slows a check without being at fault.

From /proc/stat (the CPUs that checks may run on, with what a hypervisor gave to others) without what the processes below the
runner used, dead ones included. Interrupts are left out: a device that floods a node with them is a fault of the node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: Of the columns of a `cpu` line: user and nice (both with guests), system, steal. See proc(5).
COUNTED = (0, 1, 2, 7)


class OthersWork:
    """From when it is made until it is asked. `root`: the process below which, itself included, is not others."""

    def __init__(self, root: int, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._proc, self._clock = root, proc, clock
        self._cpus = {b"cpu%d" % cpu for cpu in os.sched_getaffinity(0)}
        self.cpus = len(self._cpus)
        self._began_s, self._began = self._clock(), self._others_s()

    def mean_cpus(self) -> float:
        """Return the CPUs, on average, that worked for others since the start; 0 where that is not told."""
        passed_s, now = self._clock() - self._began_s, self._others_s()
        if self._began is None or now is None or passed_s <= 0:
            return 0.0
        return min(max((now - self._began) / passed_s, 0.0), float(self.cpus))

    def _others_s(self) -> float | None:
        try:
            with open(f"{self._proc}/stat", "rb") as file:
                lines = [line.split() for line in file if line.startswith(b"cpu")]
            used = sum(int(words[1:][at]) for words in lines if words[0] in self._cpus for at in COUNTED)
            return (used - own_ticks(self._root, self._proc)) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None


def own_ticks(root: int, proc: str = "/proc") -> int:
    """Return the CPU time of a process and all below it, with what their dead children used, in clock ticks."""
    ticks: dict[int, int] = {}
    below: dict[int, list[int]] = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            with open(f"{proc}/{entry}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        below.setdefault(int(words[1]), []).append(int(entry))
        ticks[int(entry)] = sum(int(word) for word in words[11:15])  # utime, stime, cutime, cstime
    total, queue = 0, [root]
    while queue:
        pid = queue.pop()
        total += ticks.get(pid, 0)
        queue += below.get(pid, [])
    return total
