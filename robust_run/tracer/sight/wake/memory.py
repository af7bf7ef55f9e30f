"""Reads what the arguments of a system call point to, from the memory of the process that made it."""

from __future__ import annotations

import os

from robust_run.tracer.wake.syscalls import FUTEX_COMMAND, FUTEX_LOCKS, FUTEX_WAIT, FUTEX_WAIT_BITSET, BlockingCall

#: A struct timespec or timeval, 64-bit.
TIME_BYTES = 16
POLLFD_BYTES = 8
#: Descriptors of one call that are looked at.
POLLED = 64
PATH_BYTES = 512
#: Of a lock in memory: its word, and what glibc keeps beside it.
FUTEX_BYTES = 24
_TIMED_FUTEX = FUTEX_LOCKS | {FUTEX_WAIT, FUTEX_WAIT_BITSET}


def pointed(
    pid: int, call: BlockingCall, arguments: tuple[int, ...], root: str = "/proc"
) -> tuple[tuple[int, bytes], ...]:
    """Return what the arguments point to that tell who can wake the caller, by position; what cannot be read is left out."""
    wanted = _wanted(call, arguments)
    if not wanted:
        return ()
    try:
        memory = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return tuple(
            (position, data) for position, size in wanted if (data := _read(memory, arguments[position], size))
        )
    finally:
        os.close(memory)


def _wanted(call: BlockingCall, arguments: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return positions of pointers, and how many bytes to read there."""
    found: list[tuple[int, int]] = []
    if call.limit_kind in ("timespec", "timeval", "clock") or (
        call.kind == "futex" and arguments[1] & FUTEX_COMMAND in _TIMED_FUTEX
    ):
        found.append((call.limit, TIME_BYTES))
    if call.kind == "futex":
        found.append((0, FUTEX_BYTES))
    elif call.kind == "poll":
        found.append((call.subject, min(arguments[1], POLLED) * POLLFD_BYTES))
    elif call.kind == "select":
        found += [(position, min(arguments[0], 1024) // 8 + 8) for position in (1, 2)]
    elif call.kind == "path":
        found.append((call.subject, PATH_BYTES))
    return [(position, size) for position, size in found if arguments[position] and size]


def _read(memory: int, address: int, size: int) -> bytes:
    """Return at most `size` bytes at an address; a page that is not there ends them."""
    for part in (size, min(size, 4096 - address % 4096)):
        try:
            return os.pread(memory, part, address)
        except (OSError, OverflowError):
            continue
    return b""
