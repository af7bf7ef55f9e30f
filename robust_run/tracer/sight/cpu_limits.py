"""How short CPU time is for processes: how long the CPU limit of their cgroups has held them back, and pressure on the node.

Reads `cpu.stat` of the cgroups of version 2 and 1 that processes are in, and of those above them, and `/proc/pressure/cpu`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from robust_run.tracer.pace.types import CpuShort
from robust_run.tracer.sight.freezer import MOUNTS, beginning_of, cgroups_of

_PRESSURE = re.compile(r"^some avg10=(\d{1,3}(?:\.\d+)?) ", re.MULTILINE)


class CpuLimits:
    """What was read in the round before."""

    def __init__(self, root: str = "/proc", mounts: str = MOUNTS) -> None:
        self._root = root
        self._mounts = mounts
        self._before: tuple[float, dict[str, float]] | None = None

    def share(self, pids: Iterable[int], now_s: float) -> float:
        """Return in what share of the time since the last call the limit of one cgroup held these processes back, 0 to 1."""
        files = dict.fromkeys(file for pid in pids for file in _files(pid, self._root, self._mounts))
        found = {file: told for file in files if (told := _held_s(file)) is not None}
        before, self._before = self._before, (now_s, found)
        if before is None or now_s <= before[0]:
            return 0.0
        grown = (held_s - before[1].get(file, held_s) for file, held_s in found.items())
        return round(min(1.0, max(0.0, *grown, 0.0) / (now_s - before[0])), 3)

    def look(self, pids: Iterable[int], now_s: float) -> CpuShort:
        """Return how short CPU time has been for these processes since the last call."""
        return CpuShort(self.share(pids, now_s), self.pressure_percent())

    def pressure_percent(self) -> float:
        """Return in how much of the last 10 s some work of this node waited for a CPU; 0: the kernel does not say."""
        told = _PRESSURE.search(beginning_of(f"{self._root}/pressure/cpu"))
        return float(told.group(1)) if told else 0.0


def _files(pid: int, root: str, mounts: str) -> Iterator[str]:
    """Yield the files that count for a process: a limit above it holds it back, too."""
    for mounted, parts, _ in cgroups_of(pid, "cpu", root, mounts):
        mount = next((each for each in mounted if os.path.exists(f"{each}/cgroup.procs")), "")
        if mount:
            yield from ("/".join((mount, *parts[:length], "cpu.stat")) for length in range(len(parts) + 1))


def _held_s(file: str) -> float | None:
    """Return for how long a cgroup has been held back so far; None if it has no limit of its own, or is gone."""
    for line in beginning_of(file).splitlines():
        name, _, value = line.partition(" ")
        if name in ("throttled_usec", "throttled_time") and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value) / (1e6 if name == "throttled_usec" else 1e9)
    return None
