"""Proofs that nothing can wake a rank's main thread: an allow-list of one entry, a circle of locks whose owners are known. Pure.

A lock with an owner is released by that thread alone. So where the main thread waits, without a time limit, for a lock whose
owner waits for a lock whose owner ... is one of them, nothing that any other thread, process or machine does helps: a service,
a child, a file, a person. What could: a signal whose handler raises in the middle of the wait (also one of `alarm`, which /proc
does not show), a debugger, a lock that was being handed over while it was read. Hence no caught signals but those listed, no
tracer, and three readings that agree: two at least `APART_S` from each other and one right before something is done.

All that is not in here is no proof: no owner found, an owner that has ended, locks of files, shared memory, semaphores, condition
variables, plain locks of Python, other calls than these, other architectures, what could not be read.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.tracer.files.ring_format import stacks_signal
from robust_run.tracer.wake import decode
from robust_run.tracer.wake.types import ProcessReading, ThreadReading, WakeReading

#: Two readings are at least so far from each other, the last is at most so much later than the one before.
APART_S, LATEST_S = 2.0, 2.0
#: Of signals that a program handles these wake no thread, by their numbers on Linux: SIGINT, and glibc's own for setuid.
_HARMLESS = frozenset({2, 33})


class LockCircle(msgspec.Struct, frozen=True, kw_only=True):
    """Threads of one process each of which waits for a lock that the next one holds; the last for one of an earlier one."""

    pid: int
    start_ticks: int
    threads: tuple[ThreadReading, ...]
    """The main thread first."""


def lock_circle(reading: WakeReading) -> LockCircle | None:
    """Return the circle of locks that a rank's main thread waits in or for; None if there is none for sure."""
    process = next((one for one in reading.processes if one.pid == reading.pid), None)
    if process is None or not process.threads or process.threads[0].tid != process.pid or not _is_undisturbed(process):
        return None
    threads = {thread.tid: thread for thread in process.threads}
    found: list[ThreadReading] = []
    thread: ThreadReading | None = process.threads[0]
    while thread is not None and thread.state == "S":
        if thread in found:
            return LockCircle(pid=process.pid, start_ticks=process.start_ticks, threads=tuple(found))
        found.append(thread)
        thread = threads.get(decode.lock_owner(process, thread))
    return None


def _is_undisturbed(process: ProcessReading) -> bool:
    """Whether no signal handler, no debugger and no thaw can take a thread out of its wait."""
    if process.caught_signals is None or process.tracer or process.frozen_by:
        return False
    harmless = sum(1 << (number - 1) for number in {*_HARMLESS, stacks_signal()})
    return not process.caught_signals & ~harmless


def is_proven(readings: Sequence[WakeReading]) -> bool:
    """Whether three readings or more, oldest first, show the same circle, and that none of its threads has moved meanwhile."""
    circles = [circle for reading in readings if (circle := lock_circle(reading)) is not None]
    if len(readings) < 3 or len(circles) < len(readings) or any(not _is_same(circles[0], one) for one in circles):
        return False
    apart_s = readings[-2].at_s - readings[0].at_s
    return apart_s >= APART_S and 0.0 <= readings[-1].at_s - readings[-2].at_s <= LATEST_S


def _is_same(one: LockCircle, other: LockCircle) -> bool:
    if (one.pid, one.start_ticks) != (other.pid, other.start_ticks):
        return False
    return [_moves(thread) for thread in one.threads] == [_moves(thread) for thread in other.threads]


def _moves(thread: ThreadReading) -> tuple[int, int | None, tuple[int, ...], int, int]:
    """Return what changes when a thread does anything at all."""
    return thread.tid, thread.call, thread.arguments, thread.switches, thread.run_ns
