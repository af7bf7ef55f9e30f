"""Finds the cgroups of a process, of version 2 and of version 1, from /proc/PID/cgroup and where they are mounted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from robust_run.health.sensors.files import names_in, text_or_none
from robust_run.health.sensors.job.lineage import MOST_PROCESSES, strangers
from robust_run.health.sensors.types import SensorWorld

#: Cgroups below the job's that are looked into.
MOST_GROUPS = 256


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Folders; empty where there is none."""

    unified: str = ""
    """Of version 2."""
    memory: str = ""
    """Of version 1."""
    cpu: str = ""
    """Of version 1."""


def find(world: SensorWorld) -> Cgroups:
    """Return the folders of the watched process's cgroups."""
    unified = memory = cpu = ""
    for line in (text_or_none(f"{world.process}/cgroup") or "").split("\n"):
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        names = controllers.split(",")
        if not controllers:
            unified = _folder(path, world.cgroups, f"{world.cgroups}/unified")
        if "memory" in names:
            memory = _folder(path, f"{world.cgroups}/{controllers}", f"{world.cgroups}/memory")
        if "cpu" in names:
            cpu = _folder(path, f"{world.cgroups}/{controllers}", f"{world.cgroups}/cpu")
    return Cgroups(unified=unified, memory=memory, cpu=cpu)


def _folder(path: str, *roots: str) -> str:
    """Return the first that is there: inside a container a cgroup's path may be that of the host, and its root is mounted."""
    inside = "" if ".." in path.split("/") else path.rstrip("/")
    for root in roots:
        for candidate in (f"{root}{inside}", root):
            if os.path.exists(f"{candidate}/cgroup.procs"):
                return candidate
    return ""


def own_paths(world: SensorWorld) -> tuple[str, ...]:
    """Return the paths of the cgroups that may limit the job's memory, as the kernel writes them; not those of all processes.

    In a container a path may begin at the container: then it matches nothing that the kernel says.
    """
    found = []
    for line in (text_or_none(f"{world.process}/cgroup") or "").split("\n"):
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if (
            separator
            and (not controllers or "memory" in controllers.split(","))
            and path.strip("/")
            and ".." not in path
        ):
            found.append(path)
    return tuple(found)


class Sharing:
    """Whether processes that are not the job's are in its cgroup, too: what a cgroup counts may be theirs then.

    One that was there once is remembered: it may be the very one that is gone.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._was_shared = False

    def look(self, world: SensorWorld, folder: str) -> bool:
        """Return whether it is shared, or has been. `folder`: of the cgroup; empty: there is none, and nothing to share."""
        if not self._was_shared and folder:
            pids = set(_pids(folder))
            self._known &= pids
            self._was_shared = 0 in pids or bool(strangers(world, pids, self._known))
        return self._was_shared


def _pids(folder: str) -> Iterator[int]:
    """Return the processes of a cgroup and of those below it; 0 is one of another namespace."""
    open_, count = [folder], 0
    while open_ and count < MOST_GROUPS:
        group = open_.pop()
        count += 1
        text = text_or_none(f"{group}/cgroup.procs") or ""
        yield from [int(each) for each in text.split() if each.isdecimal()][:MOST_PROCESSES]
        open_ += [f"{group}/{name}" for name in names_in(group) if os.path.isdir(f"{group}/{name}")]
