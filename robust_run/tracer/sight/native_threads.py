"""Reads which threads of a rank may do something by themselves, by what the kernel tells of each (`wake.native` decides)."""

from __future__ import annotations

import os

from robust_run.tracer.sight.processes import small_file
from robust_run.tracer.sight.wake.tables import call_in, machine_of
from robust_run.tracer.wake.native import may_act

#: Of a process with more threads nothing is said: to read them all would take too long.
THREADS = 512


def acting_threads(pid: int, root: str = "/proc") -> tuple[int, ...] | None:
    """Return the threads of a process beside its main one that may act by themselves; None if that cannot be read."""
    folder = f"{root}/{pid}/task"
    try:
        threads = [int(name) for name in os.listdir(folder)]
    except (OSError, ValueError):
        return None
    if len(threads) > THREADS:
        return None
    machine, main_name = machine_of(pid, root), small_file(f"{folder}/{pid}/comm").strip()
    return tuple(
        tid
        for tid in sorted(threads)
        if tid != pid
        and may_act(
            small_file(f"{folder}/{tid}/comm").strip(),
            machine,
            *call_in(small_file(f"{folder}/{tid}/syscall")),
            main_name,
        )
    )
