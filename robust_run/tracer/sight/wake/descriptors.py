"""Reads what descriptors of a process stand for, and who else holds the other end of a pipe."""

from __future__ import annotations

import os
import stat
from typing import Literal

from robust_run.tracer.wake.types import Access, DescriptorReading

Kind = Literal["file", "folder", "fifo", "terminal", "device", "pipe", "socket", "other"]

#: Of an epoll descriptor, so many descriptors are named.
WATCHED = 64
TEXT_BYTES = 16 * 1024
_ACCESS: tuple[Access, ...] = ("r", "w", "rw", "")
_EPOLL_READ, _EPOLL_WRITE = 0x1, 0x4
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def describe(pid: int, fd: int, root: str = "/proc") -> DescriptorReading | None:
    """Return what a descriptor stands for, None if it is gone or not ours to see."""
    path = f"{root}/{pid}/fd/{fd}"
    try:
        target = os.readlink(path)
    except OSError:
        return None
    fields = info(pid, fd, root)
    kind = _kind(target, path)
    return DescriptorReading(
        fd=fd,
        target=target,
        kind=kind,
        access=access_of(fields),
        watched=_watched(fields) if target == "anon_inode:[eventpoll]" else (),
        process=_process(fields) if target == "anon_inode:[pidfd]" else 0,
    )


def info(pid: int, fd: int, root: str = "/proc") -> str:
    """Return what the kernel says of a descriptor; "" if nothing."""
    try:
        with open(f"{root}/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            return file.read(TEXT_BYTES)
    except OSError:
        return ""


def access_of(fields: str) -> Access:
    """Return how a descriptor was opened."""
    for line in fields.splitlines():
        if line.startswith("flags:"):
            try:
                return _ACCESS[int(line.split()[1], 8) & 3]
            except (ValueError, IndexError):
                return ""
    return ""


def _kind(target: str, path: str) -> Kind:
    if target.startswith("pipe:["):
        return "pipe"
    if target.startswith("socket:["):
        return "socket"
    if target.startswith(_TERMINALS):
        return "terminal"
    if not target.startswith("/"):
        return "other"
    try:
        # The link leads to the open file itself. On a file system that does not answer this blocks: the caller can be given up.
        mode = os.stat(path).st_mode
    except OSError:
        return "other"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) else "device"


def _watched(fields: str) -> tuple[tuple[int, Access], ...]:
    """Return what an epoll descriptor watches: lines `tfd: 5 events: 19 data: ...`, events in hexadecimal."""
    found: list[tuple[int, Access]] = []
    for line in fields.splitlines():
        words = line.split()
        if line.startswith("tfd:") and len(words) > 3 and words[1].isdigit():
            try:
                events = int(words[3], 16)
            except ValueError:
                continue
            found.append((int(words[1]), wanted_access(events & _EPOLL_READ, events & _EPOLL_WRITE)))
    return tuple(found[:WATCHED])


def wanted_access(reads: int, writes: int) -> Access:
    """Return what is waited for on a descriptor."""
    if reads and writes:
        return "rw"
    return "r" if reads else "w" if writes else ""


def _process(fields: str) -> int:
    for line in fields.splitlines():
        words = line.split()
        if line.startswith("Pid:") and len(words) > 1 and words[1].isdigit():
            return int(words[1])
    return 0
