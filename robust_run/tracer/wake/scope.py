"""Whose work counts for a rank that stands still: of those who can wake it. Pure.

A thread that writes a log, or a monitor that reads /proc, keeps a process busy and wakes no other thread. What the main thread
waits for tells whose work may bring it on; where it does not, all of it may.
"""

from __future__ import annotations

import msgspec

from robust_run.tracer.wake import decode
from robust_run.tracer.wake.types import SocketReading, ThreadWait, WakeReading
from robust_run.tracer.wake.waits import wait_of

#: Who wakes by a timer sooner than this looks at something now and then, which others may be at work on.
LONG_SLEEP_S = 120.0


class WorkScope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose work may wake a rank's main thread, besides its own."""

    threads: bool
    """The other threads of its process."""
    pids: frozenset[int]
    """These processes, and what they started."""


def scope_of(reading: WakeReading | None) -> WorkScope | None:
    """Return whose work counts; None where the kernel does not tell: then that of all threads and children does."""
    rank = next((one for one in reading.processes if one.pid == reading.pid), None) if reading is not None else None
    if reading is None or rank is None or not rank.threads:
        return None
    wait = wait_of(reading, rank, rank.threads[0])
    kinds = {waker.kind for waker in wait.wakers}
    if kinds & {"unknown", "nothing"} or _is_a_look(wait, reading.at_s):
        return None
    return WorkScope(
        threads="thread" in kinds, pids=frozenset(waker.pid for waker in wait.wakers if waker.kind == "process")
    )


def _is_a_look(wait: ThreadWait, now_s: float) -> bool:
    """Whether it wakes soon by itself: to look at what others do, perhaps."""
    return wait.until_s is not None and wait.until_s - now_s < LONG_SLEEP_S


def awaited_socket(reading: WakeReading, pid: int) -> SocketReading | None:
    """Return the one connection that the main thread of a process waits to read from; None if it does not, or on several."""
    process = next((one for one in reading.processes if one.pid == pid), None)
    if process is None or not process.threads:
        return None
    fds = {fd for fd, wanted in decode.awaited_descriptors(process.machine, process.threads[0]) if "r" in wanted}
    targets = {one.target for one in process.descriptors if one.fd in fds and one.kind == "socket"}
    found = [one for one in reading.sockets if f"socket:[{one.inode}]" in targets and one.there]
    return found[0] if len(found) == 1 and len(fds) == 1 else None
