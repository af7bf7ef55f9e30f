"""Reads what the kernel says about memory: of the node, and of the cgroups that this process is in, up to their root."""

from __future__ import annotations

import os
from collections.abc import Iterator

from robust_run.ckpt_io.memory.budget import GroupFacts, MemoryFacts
from robust_run.health.sensors import cgroups
from robust_run.health.sensors.files import key_values, number, text_or_none
from robust_run.health.sensors.types import SensorWorld

#: Where there is no limit, version 1 says nearly 2**63.
_NO_LIMIT_BYTES = 1 << 60


def read(proc: str = "/proc", cgroups_at: str = "/sys/fs/cgroup") -> MemoryFacts:
    """Return what it says. Never raises: what cannot be read sets no limit."""
    total, available = _node(text_or_none(f"{proc}/meminfo") or "")
    found = cgroups.find(SensorWorld(proc=proc, cgroups=cgroups_at, pid=os.getpid()))
    groups = [*_groups(found.unified, cgroups_at, "memory.max", "memory.current", "inactive_file")]
    groups += _groups(found.memory, cgroups_at, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return MemoryFacts(total_bytes=total, available_bytes=available, groups=tuple(groups))


def _node(meminfo: str) -> tuple[int | None, int | None]:
    found: dict[str, int] = {}
    for line in meminfo.split("\n"):
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    return found.get("MemTotal"), found.get("MemAvailable")


def _groups(folder: str, root: str, limit: str, used: str, reclaimable: str) -> Iterator[GroupFacts]:
    """Yield the cgroup and those above it that have a limit."""
    while folder.startswith(root) and len(folder) >= len(root):
        limit_bytes, used_bytes = number(f"{folder}/{limit}"), number(f"{folder}/{used}")
        if limit_bytes is not None and used_bytes is not None and 0 <= limit_bytes < _NO_LIMIT_BYTES:
            counts = key_values(text_or_none(f"{folder}/memory.stat") or "")
            yield GroupFacts(
                name=f"{folder}/{limit}",
                limit_bytes=limit_bytes,
                used_bytes=used_bytes,
                reclaimable_bytes=min(counts.get(reclaimable, 0), used_bytes),
            )
        folder = os.path.dirname(folder)
