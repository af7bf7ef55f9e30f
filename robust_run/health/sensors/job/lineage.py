"""Which processes are the job's: those below its agent, which adopts orphans. All others are strangers."""

from __future__ import annotations

import os
from collections.abc import Iterable

from robust_run.health.sensors.files import text_or_none
from robust_run.health.sensors.types import SensorWorld

#: As the kernel names the namespace of all its process ids (PROC_PID_INIT_INO): only there is a pid in its log one of ours.
_INITIAL = "pid:[4026531836]"
MOST_PROCESSES, DEEPEST = 4096, 64
#: How long the number of a process that has ended stands for it.
REMEMBERED_S = 300.0


def speaks_our_pids(world: SensorWorld) -> bool:
    """Whether process ids in the kernel's log are those that /proc has: not within a container."""
    try:
        return os.readlink(f"{world.process}/ns/pid") == _INITIAL
    except OSError:
        return False


def parent_of(world: SensorWorld, pid: int) -> int | None:
    """Return a process's parent, 0 for one that has none; None where there is no such process."""
    text = text_or_none(f"{world.proc}/{pid}/stat")
    row = (text or "").rpartition(")")[2].split()
    return int(row[1]) if len(row) > 1 and row[1].isdecimal() else None


def is_below(world: SensorWorld, pid: int, root: int) -> bool | None:
    """Whether a process is another, or descends from it; None where it, or one between, is gone."""
    for _ in range(DEEPEST):
        if pid == root:
            return True
        if pid <= 1:
            return False
        parent = parent_of(world, pid)
        if parent is None:
            return None
        pid = parent
    return None


def ancestors(world: SensorWorld, pid: int) -> tuple[int, ...]:
    """Return those that a process descends from, the nearest first."""
    found: list[int] = []
    for _ in range(DEEPEST):
        parent = parent_of(world, pid)
        if not parent:
            break
        found.append(parent)
        pid = parent
    return tuple(found)


def descendants(world: SensorWorld, root: int) -> tuple[int, ...]:
    """Return a process and those below it that main threads have started; all that costs little to find."""
    found, open_ = [root], [root]
    while open_ and len(found) < MOST_PROCESSES:
        pid = open_.pop()
        text = text_or_none(f"{world.proc}/{pid}/task/{pid}/children") or ""
        new = [int(each) for each in text.split() if each.isdecimal()]
        found += new
        open_ += new
    return tuple(found)


def strangers(world: SensorWorld, pids: Iterable[int], known: set[int]) -> set[int]:
    """Return those of some processes that are neither the job's nor started it. `known`: that were found to be so before.

    Adds to `known`. A process that is gone by now is not among them.
    """
    above: tuple[int, ...] | None = None
    found = set()
    for pid in pids:
        if pid in known:
            continue
        above = ancestors(world, world.job) if above is None else above
        ours = pid in above or is_below(world, pid, world.job)
        if ours:
            known.add(pid)
        elif ours is False:
            found.add(pid)
    return found


class ProcessFamily:
    """The job's processes, those that have ended lately among them."""

    def __init__(self, world: SensorWorld) -> None:
        self._world = world
        self._seen: dict[int, float] = {}
        self.speaks_our_pids = speaks_our_pids(world)

    def look(self, now_s: float) -> None:
        """Remember who is there: when the kernel's log names one, it may be gone."""
        self._seen = {pid: at_s for pid, at_s in self._seen.items() if now_s - at_s <= REMEMBERED_S}
        self._seen.update(dict.fromkeys(descendants(self._world, self._world.job), now_s))

    def has(self, pid: int) -> bool | None:
        """Whether a process that the kernel's log names is the job's; None where that cannot be told."""
        if not self.speaks_our_pids or pid <= 0:
            return None
        below = is_below(self._world, pid, self._world.job)
        return below if below is not None else True if pid in self._seen else None
