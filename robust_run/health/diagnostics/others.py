"""How much the CPUs of this node work for others than the check programs: what slows a check without being at fault.

From /proc/stat (the CPUs that checks may run on, with what a hypervisor gave to others) without what the programs used.
Interrupts are left out: a device that floods a node with them is a fault of the node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

#: Columns of a line of /proc/stat: user and nice (both with guests), system, steal. See proc(5).
COUNTED = (0, 1, 2, 7)
#: The kernel counts in ticks of 10 ms: it takes some.
SHORTEST_S = 0.1


class OthersWork:
    """From when it is made until it is asked. `own_s`: the CPU time so far of what is not others."""

    def __init__(
        self,
        own_s: Callable[[], float],
        cpus: Collection[int],
        proc: str = "/proc",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own_s, self._proc, self._clock = own_s, proc, clock
        self._names = {b"cpu%d" % cpu for cpu in cpus}
        self.cpus = len(self._names)
        self._began_s, self._began = self._clock(), self._others_s()

    def mean_cpus(self) -> float | None:
        """Return the CPUs, on average, that worked for others since the start; None where that is not told, or too short."""
        passed_s, now = self._clock() - self._began_s, self._others_s()
        if self._began is None or now is None or passed_s < SHORTEST_S:
            return None
        return round(min(max((now - self._began) / passed_s, 0.0), float(self.cpus)), 2)

    def _others_s(self) -> float | None:
        try:
            with open(f"{self._proc}/stat", "rb") as file:
                lines = [line.split() for line in file if line.startswith(b"cpu")]
            used = sum(int(words[1:][at]) for words in lines if words[0] in self._names for at in COUNTED)
            return used / os.sysconf("SC_CLK_TCK") - self._own_s()
        except (OSError, ValueError, IndexError):
            return None


def beside_all_below(root: int) -> OthersWork:
    """Return what looks at others than a process and all below it, on the CPUs that this process may run on."""
    return OthersWork(lambda: used_below_s(root), os.sched_getaffinity(0))


def beside_this_process(cpus: Collection[int], alike: int = 1) -> OthersWork:
    """Return what looks at others than this process, and those on this node that do the same (`alike`, this one included)."""
    return OthersWork(lambda: time.process_time() * alike, cpus)


def used_below_s(root: int, proc: str = "/proc") -> float:
    """Return the CPU time of a process and all below it, with what their dead children used."""
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
    return total / os.sysconf("SC_CLK_TCK")
