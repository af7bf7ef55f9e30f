"""The phases file: what the newest steps of a rank consisted of, by its GPU's clock; readable after the rank was killed.

One file of 64 KiB for each worker of an attempt, beside its steps file. The launcher creates it, the worker writes to it once its
program uses CUDA (`robust_run/tracer/arm/phase_timer.py`), agents read it. Cells of eight bytes in the machine's byte order:

    header   magic, version, pid (0: nothing is timed), state, newest step on record, one in how many steps is timed, clock
    records  1024 of eight cells, step n in record n mod 1024: host's monotonic time at which the program had enqueued the end of
             the step; forward, waiting in it; backward, waiting in it; the rest, waiting in it; n + 1

All times are nanoseconds. The writer clears the last cell of a record, fills the others and writes it last; a reader looks at it
before and after. Nothing here trusts the writer: it may be any program, killed at any instruction.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

from robust_run.tracer.types import StepPhases

MAGIC = b"RBPHASE\n"
VERSION = 1
RECORDS = 1024
RECORD_CELLS = 8
RECORDS_AT_CELL = 8
FILE_BYTES = 8 * (RECORDS_AT_CELL + RECORDS * RECORD_CELLS)
MAGIC_CELL, VERSION_CELL, PID_CELL, STATE_CELL, NEWEST_CELL, STRIDE_CELL, CLOCK_CELL = range(7)
UNARMED, ARMED, GIVEN_UP = range(3)
NO_CLOCK, EVENTS, HOST = range(3)
SUFFIX = ".phases"
#: No step is longer, ten years.
LONGEST_NS = 3 * 10**17

_RECORD = struct.Struct(f"={RECORD_CELLS}Q")


def create(path: str) -> None:
    """Make the phases file of a rank, which no process has claimed yet, in place of what was there. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # All of it is there from the start: a worker that touches what a full /dev/shm cannot give dies of SIGBUS.
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.pwrite(descriptor, MAGIC + VERSION.to_bytes(8, sys.byteorder), 0)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def beside(ring: str) -> str:
    """Return the phases file that belongs to a ring, or to a copy of one."""
    return f"{ring.removesuffix('ring')}phases"


def is_used(path: str) -> bool:
    """Whether a worker has claimed a phases file. Never raises."""
    return bool(_header(path)[0])


def goes_on(path: str) -> bool:
    """Whether a worker times its steps: it has begun, and not given up. Never raises."""
    pid, state = _header(path)
    return bool(pid) and state == ARMED


def _header(path: str) -> tuple[int, int]:
    """Return pid and state; zeros where there are none."""
    try:
        with open(path, "rb", buffering=0, opener=_open) as file:
            content = os.pread(file.fileno(), 8 * (STATE_CELL + 1), 0)
    except (OSError, ValueError):
        return 0, UNARMED
    if len(content) < 8 * (STATE_CELL + 1) or not content.startswith(MAGIC):
        return 0, UNARMED
    cells = memoryview(content).cast("Q")
    return cells[PID_CELL], cells[STATE_CELL]


def read(path: str) -> tuple[StepPhases, ...]:
    """Return the steps on record, oldest first, damaged ones left out. Empty where nothing is timed. Never raises."""
    if not is_used(path):
        return ()
    try:
        with open(path, "rb", buffering=0, opener=_open) as file:
            first, again = os.pread(file.fileno(), FILE_BYTES, 0), os.pread(file.fileno(), FILE_BYTES, 0)
    except (OSError, ValueError):
        return ()
    if len(first) != FILE_BYTES or len(again) != FILE_BYTES or not first.startswith(MAGIC):
        return ()
    cells = memoryview(first).cast("Q")
    if cells[VERSION_CELL] != VERSION or not cells[PID_CELL]:
        return ()
    return tuple(sorted(_records(first, memoryview(again).cast("Q")), key=lambda phases: phases.step))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def _records(content: bytes, again: memoryview[int]) -> Iterator[StepPhases]:
    """Yield the records that were whole while the file was read twice."""
    newest = again[NEWEST_CELL]
    for position, record in enumerate(_RECORD.iter_unpack(content[8 * RECORDS_AT_CELL :])):
        at_ns, *lengths, number = record
        last = RECORDS_AT_CELL + RECORD_CELLS * position + RECORD_CELLS - 1
        step = number - 1
        if number == 0 or number != again[last] or step % RECORDS != position or not newest - RECORDS < step <= newest:
            continue
        if at_ns < 2**63 and all(length <= LONGEST_NS for length in lengths):
            yield StepPhases(step, at_ns / 1e9, *(length / 1e6 for length in lengths))
