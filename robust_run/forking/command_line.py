"""Command line of this process as `ps`, `pkill -f` and /proc show it: its command line, its environment and its short name.

The kernel reads them from this process's memory, between addresses that it keeps. PR_SET_MM_MAP moves those, without
privilege, in kernels built for checkpoints (all common ones). Elsewhere the command line is written over the old one as far as
it fits, and the environment shown stays that of the warm process. It is only a sign to others, so none of this raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

PR_SET_MM = 35
PR_SET_MM_MAP = 14
#: Length of a task's name in the kernel, without its final NUL.
NAME_BYTES = 15
PROT_READ_WRITE = 3
MAP_PRIVATE_ANONYMOUS = 0x22

#: Fields of /proc/PID/stat after the name in brackets, counted from 0, in the order of the kernel's `prctl_mm_map`.
STAT_FIELDS = {
    "start_code": 23,
    "end_code": 24,
    "start_data": 42,
    "end_data": 43,
    "start_brk": 44,
    "brk": None,
    "start_stack": 25,
    "arg_start": 45,
    "arg_end": 46,
    "env_start": 47,
    "env_end": 48,
}


def show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Show this command line and environment from now on. Never raises."""
    try:
        _name_task(os.path.basename(argv[0]))
        _show(_block(argv), _block(f"{name}={value}" for name, value in env.items()))
    except (OSError, ValueError, AttributeError) as error:
        # Others see a warm process; the worker itself is none the worse.
        _ignored.append(error)


_ignored: list[Exception] = []


def _block(words: object) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)  # type: ignore[attr-defined]


def _name_task(name: str) -> None:
    """Have the name that exec gives: that of the program's file."""
    with open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(os.fsencode(name)[:NAME_BYTES])


def _show(command_line: bytes, environment: bytes) -> None:
    import ctypes

    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    addresses = {name: int(fields[place]) for name, place in STAT_FIELDS.items() if place is not None}
    room = addresses["arg_end"] - addresses["arg_start"]
    old = (addresses["arg_start"], addresses["arg_end"])
    if not old[0] or room <= 0:
        return
    if len(command_line) <= room:
        # In the old place if possible: libraries that change a process's title write there.
        ctypes.memmove(old[0], command_line.ljust(room, b"\0"), room)
        addresses["arg_end"] = old[0] + len(command_line)
    else:
        ctypes.memmove(old[0], command_line[: room - 1] + b"\0", room)
        addresses["arg_start"], addresses["arg_end"] = _keep(command_line)
    addresses["env_start"], addresses["env_end"] = _keep(environment)
    _move(addresses)


def _keep(data: bytes) -> tuple[int, int]:
    """Copy the bytes to memory that is never given back, and return where it starts and ends."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    address = libc.mmap(None, max(len(data), 1), PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    ctypes.memmove(address, data, len(data))
    return address, address + len(data)


def _move(addresses: dict[str, int]) -> None:
    """Tell the kernel where to look. Raises OSError where it does not let us."""
    import ctypes

    class MemoryMap(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_uint64) for name in STAT_FIELDS),
            ("auxv", ctypes.c_uint64),
            ("auxv_size", ctypes.c_uint32),
            ("exe_fd", ctypes.c_uint32),
        )

    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    memory_map = MemoryMap(exe_fd=0xFFFFFFFF, **addresses)
    where, size = ctypes.addressof(memory_map), ctypes.sizeof(memory_map)
    # The end of the heap is part of the message and must not change until it is read: nothing large is allocated between.
    memory_map.brk = libc.sbrk(0)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, where, size, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)", sys.executable)
