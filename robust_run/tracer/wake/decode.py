"""Decodes a system call as it was read: descriptors, children, time limit. Pure.

Arguments are registers: unsigned words of 64 bits, of which a C int is the lower half.
"""

from __future__ import annotations

import struct

from robust_run.tracer.wake.syscalls import (
    FUTEX_COMMAND,
    FUTEX_LOCKS,
    FUTEX_PRIVATE,
    FUTEX_REALTIME,
    FUTEX_WAIT,
    FUTEX_WAIT_BITSET,
    BlockingCall,
    blocking_call,
)
from robust_run.tracer.wake.types import Access, ProcessReading, ThreadReading, WakeReading

_POLL_READ, _POLL_WRITE = 0x0001 | 0x0002 | 0x0040, 0x0004 | 0x0100
#: F_SETLKW and F_OFD_SETLKW: of fcntl only these wait.
_SET_LOCK_WAIT = frozenset({7, 38})
#: TIMER_ABSTIME of clock_nanosleep.
_ABSOLUTE = 1
#: Of a mutex of glibc: it is held, and others wait.
_CONTENDED = 2
#: Normal, recursive, checking, adaptive; no shared ones, nor those that survive their owner or lend it their priority.
_MUTEX_KINDS = frozenset({0, 1, 2, 3})
_P_PID, _P_PIDFD = 1, 3
_REALTIME, _MONOTONIC, _BOOTTIME = 0, 1, 7
#: Longer is for ever: `sleep infinity`.
FOREVER_S = 10 * 365 * 86400.0


def pointed(thread: ThreadReading, position: int) -> bytes:
    """Return what an argument points to; empty if that was not read."""
    return next((data for at, data in thread.pointed if at == position), b"")


def awaited_descriptors(machine: str, thread: ThreadReading) -> list[tuple[int, Access]]:
    """Return the descriptors that a thread waits for, and what for: to read, to write, both."""
    call = blocking_call(machine, thread.call)
    if call is None or not thread.arguments:
        return []
    if call.kind in ("read", "write"):
        return [(signed(thread.arguments[0]), "r" if call.kind == "read" else "w")]
    if call.kind in ("lock", "sync", "epoll"):
        waits = call.name != "fcntl" or thread.arguments[1] in _SET_LOCK_WAIT
        return [(signed(thread.arguments[0]), "")] if waits else []
    if call.kind == "poll":
        return _polled(pointed(thread, call.subject))
    if call.kind == "select":
        return _selected(thread)
    if call.name == "waitid" and thread.arguments[0] == _P_PIDFD:
        return [(signed(thread.arguments[1]), "")]
    return []


def _polled(data: bytes) -> list[tuple[int, Access]]:
    found: list[tuple[int, Access]] = []
    for at in range(0, len(data) - 7, 8):
        fd, events, _ = struct.unpack_from("<iHH", data, at)
        if fd >= 0:
            found.append((fd, _access(bool(events & _POLL_READ), bool(events & _POLL_WRITE))))
    return found


def _selected(thread: ThreadReading) -> list[tuple[int, Access]]:
    count = min(thread.arguments[0], 1024)
    reads, writes = (int.from_bytes(pointed(thread, position), "little") for position in (1, 2))
    return [
        (fd, _access(bool(reads >> fd & 1), bool(writes >> fd & 1)))
        for fd in range(count)
        if (reads | writes) >> fd & 1
    ]


def _access(reads: bool, writes: bool) -> Access:
    if reads and writes:
        return "rw"
    return "r" if reads else "w" if writes else ""


def awaited_children(process: ProcessReading, thread: ThreadReading) -> tuple[int, ...]:
    """Return the children of a process that a thread waits for."""
    call = blocking_call(process.machine, thread.call)
    if call is None or call.kind != "child" or not thread.arguments:
        return ()
    if call.name == "waitid":
        if thread.arguments[0] == _P_PIDFD:
            return ()
        return (thread.arguments[1],) if thread.arguments[0] == _P_PID else process.children
    child = signed(thread.arguments[0])
    return (child,) if child > 0 else process.children


def lock_owner(process: ProcessReading, thread: ThreadReading) -> int:
    """Return the thread that holds the lock in memory that a thread waits for without a time limit; 0 if that is not known.

    glibc notes the owner in its mutexes, CPython in an RLock. Others (semaphores, condition variables, CPython's plain locks)
    name none: any thread may post them.
    """
    call = blocking_call(process.machine, thread.call)
    if call is None or call.kind != "futex" or not thread.arguments:
        return 0
    word, operation, value, limit = thread.arguments[:4]
    command = operation & FUTEX_COMMAND
    if not operation & FUTEX_PRIVATE or limit or command not in (FUTEX_WAIT, FUTEX_WAIT_BITSET):
        return 0
    held = next((one for one in process.held_locks if (one.waiter, one.word) == (thread.tid, word)), None)
    if held is not None:
        return held.owner
    return _mutex_owner(process, pointed(thread, 0)) if command == FUTEX_WAIT and value == _CONTENDED else 0


def _mutex_owner(process: ProcessReading, data: bytes) -> int:
    """Return the owner in a `pthread_mutex_t` that others wait for; 0 if it is none, or one that works otherwise."""
    if len(data) < 20:
        return 0
    state, _, owner, users, kind = struct.unpack_from("<IIiIi", data)
    is_mutex = state == _CONTENDED and users > 0 and kind in _MUTEX_KINDS
    return owner if is_mutex and any(one.tid == owner for one in process.threads) else 0


def limit_s(reading: WakeReading, process: ProcessReading, thread: ThreadReading) -> tuple[float | None, bool]:
    """Return when the call ends by itself at the latest, on the node's monotonic clock, and whether that is known exactly.

    None: it has no limit, or none that can be read. A limit that counts from when the call was made is taken from now: the
    kernel does not say when that was.
    """
    call = blocking_call(process.machine, thread.call)
    if call is None or call.limit < 0 or not thread.arguments:
        return None, False
    if call.limit_kind == "milliseconds":
        left_ms = signed(thread.arguments[call.limit])
        return (reading.at_s + left_ms / 1e3, False) if left_ms >= 0 else (None, False)
    data = pointed(thread, call.limit)
    if len(data) < 16:
        return None, False
    seconds, part = struct.unpack_from("<qq", data)
    value_s = seconds + part / (1e6 if call.limit_kind == "timeval" else 1e9)
    return _from_clock(reading, process, call, thread.arguments, value_s)


def _from_clock(
    reading: WakeReading, process: ProcessReading, call: BlockingCall, arguments: tuple[int, ...], value_s: float
) -> tuple[float | None, bool]:
    """Turn a time of the call's own clock into one of the node's monotonic clock."""
    clock = _clock(call, arguments)
    if clock is None:
        return (reading.at_s + value_s, False) if value_s <= FOREVER_S else (None, False)
    if not process.same_clocks or clock not in (_REALTIME, _MONOTONIC):
        return None, False
    left_s = value_s - (reading.unix_s if clock == _REALTIME else reading.at_s)
    if left_s > FOREVER_S:
        return None, False
    # A step of the wall clock moves the end of what waits for it.
    return reading.at_s + left_s, clock == _MONOTONIC and call.kind == "sleep"


def _clock(call: BlockingCall, arguments: tuple[int, ...]) -> int | None:
    """Return the clock that a limit is absolute on, None for one that counts from the call."""
    if call.limit_kind == "clock":
        return arguments[0] if arguments[1] & _ABSOLUTE else None
    if call.limit_kind != "futex":
        return None
    command = arguments[1] & FUTEX_COMMAND
    if command == FUTEX_WAIT:
        return None
    if command in FUTEX_LOCKS:
        return _REALTIME if command == min(FUTEX_LOCKS) else _MONOTONIC
    if command == FUTEX_WAIT_BITSET:
        return _REALTIME if arguments[1] & FUTEX_REALTIME else _MONOTONIC
    return _BOOTTIME


def signed(register: int) -> int:
    """Return the C int in a register."""
    low = register & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
