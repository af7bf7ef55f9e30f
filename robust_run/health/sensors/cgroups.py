"""Finds the cgroups of a process, of version 2 and of version 1, from /proc/PID/cgroup and where they are mounted."""

from __future__ import annotations

import os

import msgspec

from robust_run.health.sensors.files import text_or_none
from robust_run.health.sensors.types import World


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Folders; empty where there is none."""

    unified: str = ""
    """Of version 2."""
    memory: str = ""
    """Of version 1."""
    cpu: str = ""
    """Of version 1."""


def find(world: World) -> Cgroups:
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
