"""The file of reduced values: checksums of what collectives have left on this rank, to be compared with those of its peers.

One file of 6 KiB for each worker of an attempt, beside its steps file, where `--check-reduced` asks for it. The launcher creates
it, the worker writes to it (`robust_run/tracer/arm/reduced.py`), agents read it. Cells of eight bytes in the machine's order:

    header   magic, version, pid (0: nothing is compared), state, records written so far, steps from one check to the next
    records  64 of twelve cells, record n in place n mod 64: group, ranks in it, number of the call, kind, elements, dtype,
             first element and number of those that were added up, steps made, checksum, nothing, n + 1

The writer clears the last cell of a record, fills the others and writes it last; a reader looks at it before and after. Nothing
here trusts the writer: it may be any program, killed at any instruction.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress

from robust_run.tracer.reduced.types import KINDS, ReducedValue

MAGIC = b"RBREDUC\n"
VERSION = 1
RECORDS, RECORD_CELLS, RECORDS_AT_CELL = 64, 12, 8
FILE_BYTES = 8 * (RECORDS_AT_CELL + RECORDS * RECORD_CELLS)
MAGIC_CELL, VERSION_CELL, PID_CELL, STATE_CELL, COUNT_CELL, EVERY_CELL = range(6)
UNARMED, ARMED, GIVEN_UP = range(3)

_RECORD = struct.Struct(f"={RECORD_CELLS}Q")


def create(path: str, every: int) -> None:
    """Make the file of a rank, which no process has claimed yet, in place of what was there. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    header = MAGIC + b"".join(cell.to_bytes(8, sys.byteorder) for cell in (VERSION, 0, UNARMED, 0, every))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # All of it is there from the start: a worker that touches what a full /dev/shm cannot give dies of SIGBUS.
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.pwrite(descriptor, header, 0)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def read(path: str, rank: int, after: int) -> tuple[int, tuple[ReducedValue, ...]]:
    """Return how many records a rank has written, and those of them that are left and came after so many. Never raises."""
    try:
        with open(path, "rb", buffering=0, opener=_open) as file:
            header = os.pread(file.fileno(), 8 * RECORDS_AT_CELL, 0)
            if len(header) < 8 * RECORDS_AT_CELL or not header.startswith(MAGIC):
                return after, ()
            cells = memoryview(header).cast("Q")
            count = cells[COUNT_CELL]
            if cells[VERSION_CELL] != VERSION or not cells[PID_CELL] or count <= after:
                return after, ()
            first, again = os.pread(file.fileno(), FILE_BYTES, 0), os.pread(file.fileno(), FILE_BYTES, 0)
    except (OSError, ValueError):
        return after, ()
    if len(first) != FILE_BYTES or len(again) != FILE_BYTES:
        return after, ()
    return count, _records(first, memoryview(again).cast("Q"), rank, after, count)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def _records(first: bytes, again: memoryview[int], rank: int, after: int, count: int) -> tuple[ReducedValue, ...]:
    found = []
    for number in range(max(after, count - RECORDS), count):
        place = RECORDS_AT_CELL + RECORD_CELLS * (number % RECORDS)
        *cells, _, last = _RECORD.unpack_from(first, 8 * place)
        group, size, seq, kind, numel, dtype, start, length, step, checksum = cells
        if last == number + 1 == again[place + RECORD_CELLS - 1] and 0 < kind < len(KINDS):
            found.append(ReducedValue(rank, group, size, seq, kind, numel, dtype, start, length, step, checksum))
    return tuple(found)
