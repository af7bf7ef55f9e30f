"""The table of mounts (/proc/PID/mountinfo, proc(5)): what is mounted where. No file system is asked, so none can hang."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

TABLE = "/proc/thread-self/mountinfo"
"""Of the thread that asks: each may have a namespace of its own."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A mount that the kernel knows."""

    number: str
    """Its ID, as file descriptors name it (`mnt_id`)."""
    point: str
    kind: str
    """Type of the file system."""
    source: str
    device: str
    """major:minor."""


def parse(line: str) -> Mount | None:
    """Read a line of the table; None for one in no known form."""
    before, dash, after = line.partition(" - ")
    fields, kind = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(kind) < 2:
        return None
    return Mount(number=fields[0], point=_plain(fields[4]), kind=kind[0], source=_plain(kind[1]), device=fields[2])


def mounts(table: str = TABLE) -> list[Mount]:
    """Return all mounts, in the order in which they were made. Raises OSError."""
    with open(table, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        return [mount for line in lines if (mount := parse(line)) is not None]


def mount_of(path: str, found: Iterable[Mount]) -> Mount | None:
    """Return the mount that an absolute path lies on, going by its name alone. Pure."""
    best = None
    for mount in found:  # of two on one place the later one is on top
        if is_below(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it, by its name alone. Pure."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def points_below(folder: str) -> list[str]:
    """Return the mount points below a folder, itself left out."""
    folder = folder.rstrip("/")
    return [mount.point for mount in mounts() if is_below(mount.point, folder) and mount.point != folder]


def device_number(folder: str) -> int | None:
    """Return the device number of what is mounted on a folder, uppermost; None: nothing."""
    devices = [mount.device for mount in mounts() if mount.point == folder]
    if not devices:
        return None
    major, _colon, minor = devices[-1].partition(":")
    return os.makedev(int(major), int(minor))


def _plain(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)
