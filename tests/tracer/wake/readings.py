"""Readings written by hand: processes in system calls, as a kernel would tell of them."""

from __future__ import annotations

import struct

from robust_run.tracer.wake.syscalls import BLOCKING
from robust_run.tracer.wake.types import (
    DescriptorReading,
    HolderReading,
    LockReading,
    ProcessReading,
    SocketReading,
    ThreadReading,
    WakeReading,
)

AT_S, UNIX_S = 1000.0, 1_800_000_000.0
#: The rank's process in all of them.
PID = 100


def number_of(name: str, machine: str = "x86_64") -> int:
    """Return the number of a system call."""
    return next(number for number, call in BLOCKING[machine].items() if call.name == name)


def time_at(seconds: float) -> bytes:
    """Return a struct timespec."""
    return struct.pack("<qq", int(seconds), int(seconds % 1 * 1e9))


def thread(
    call: str = "", *arguments: int, tid: int = PID, state: str = "S", machine: str = "x86_64", **pointed: bytes
) -> ThreadReading:
    """Return a thread in a call; `at2=...` is what its third argument points to."""
    return ThreadReading(
        tid=tid,
        state=state,
        call=number_of(call, machine) if call else None,
        arguments=(*arguments, *[0] * (6 - len(arguments))) if call else (),
        pointed=tuple((int(name[2:]), data) for name, data in pointed.items()),
    )


def process(
    *threads: ThreadReading,
    pid: int = PID,
    parent: int = 1,
    command: str = "python train.py",
    machine: str = "x86_64",
    descriptors: tuple[DescriptorReading, ...] = (),
    children: tuple[int, ...] = (),
    same_clocks: bool = True,
    hidden_threads: int = 0,
) -> ProcessReading:
    """Return a process with these threads."""
    return ProcessReading(
        pid=pid,
        parent=parent,
        start_ticks=1,
        command=command,
        machine=machine,
        threads=threads,
        descriptors=descriptors,
        children=children,
        same_clocks=same_clocks,
        hidden_threads=hidden_threads,
    )


def reading(
    *processes: ProcessReading,
    holders: tuple[HolderReading, ...] = (),
    sockets: tuple[SocketReading, ...] = (),
    locks: tuple[LockReading, ...] = (),
) -> WakeReading:
    """Return a reading; the rank is the first process."""
    return WakeReading(
        at_s=AT_S,
        unix_s=UNIX_S,
        pid=processes[0].pid,
        processes=processes,
        holders=holders,
        sockets=sockets,
        locks=locks,
    )
