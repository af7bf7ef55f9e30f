"""Reads what the arguments of a system call point to, from the memory of the process that made it."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from robust_run.tracer.wake.syscalls import (
    FUTEX_COMMAND,
    FUTEX_LOCKS,
    FUTEX_PRIVATE,
    FUTEX_WAIT,
    FUTEX_WAIT_BITSET,
    BlockingCall,
)
from robust_run.tracer.wake.types import ThreadReading

#: A struct timespec or timeval, 64-bit.
TIME_BYTES = 16
POLLFD_BYTES = 8
#: Descriptors of one call that are looked at.
POLLED = 64
PATH_BYTES = 512
#: Of a lock in memory: its word, and what glibc keeps beside it.
FUTEX_BYTES = 24
#: So much of a thread's stack, from where it entered the kernel, holds the frames of the function that waits for the lock.
STACK_BYTES = 1024
#: Addresses in it that are looked at.
POINTERS = 128
#: CPython's `rlockobject` up to 3.13: reference count, type, lock, owner, count; where a type has its name.
_RLOCK, _TYPE_NAME_AT, _RLOCK_NAME = struct.Struct("<5Q"), 24, b"_thread.RLock\0"
#: Where `struct pthread` of glibc has the number of its thread: the owner of an RLock is the address of one.
_TID_AT = {"x86_64": 720, "aarch64": 208}
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


def rlock_owner(pid: int, machine: str, thread: ThreadReading, tids: Sequence[int], root: str = "/proc") -> int:
    """Return the thread that holds the `threading.RLock` that a thread waits for; 0 if it waits for none, or that is not known.

    Such a lock is found from the stack of the function that waits: the one object there of that type whose lock is waited at.
    """
    word, operation = thread.arguments[:2]
    if machine not in _TID_AT or not thread.stack or not operation & FUTEX_PRIVATE:
        return 0
    try:
        memory = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        owners = {owner for address in _pointers(memory, thread.stack) if (owner := _owner_at(memory, address, word))}
        data = _read(memory, owners.pop() + _TID_AT[machine], 4) if len(owners) == 1 else b""
    finally:
        os.close(memory)
    owner = int.from_bytes(data, "little") if len(data) == 4 else 0
    return owner if owner in tids else 0


def _pointers(memory: int, stack: int) -> list[int]:
    """Return what may be addresses of objects in the innermost frames of a stack."""
    data = _read(memory, stack, STACK_BYTES)
    words = struct.unpack_from(f"<{len(data) // 8}Q", data)
    return list(dict.fromkeys(word for word in words if 1 << 16 <= word < 1 << 48 and not word % 8))[:POINTERS]


def _owner_at(memory: int, address: int, word: int) -> int:
    """Return the owner in an RLock at an address whose lock is waited at; 0 if there is none."""
    data = _read(memory, address, _RLOCK.size)
    if len(data) < _RLOCK.size:
        return 0
    _, kind, lock, owner, count = _RLOCK.unpack(data)
    if lock != word or not owner or not count:
        return 0
    name = int.from_bytes(_read(memory, kind + _TYPE_NAME_AT, 8), "little")
    return owner if _read(memory, name, len(_RLOCK_NAME)) == _RLOCK_NAME else 0


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
