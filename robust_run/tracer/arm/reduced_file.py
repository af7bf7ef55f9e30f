"""Writes the file of reduced values of this worker. `sitecustomize` loads this file by its path.

The layout is that of `robust_run.tracer.files.reduced`; a test keeps the two equal. Python's standard library only.
"""

from __future__ import annotations

import os
import struct

MAGIC = b"RBREDUC\n"
VERSION = 1
RECORDS, RECORD_CELLS, RECORDS_AT_CELL = 64, 12, 8
FILE_BYTES = 8 * (RECORDS_AT_CELL + RECORDS * RECORD_CELLS)
MAGIC_CELL, VERSION_CELL, PID_CELL, STATE_CELL, COUNT_CELL, EVERY_CELL = range(6)
UNARMED, ARMED, GIVEN_UP = range(3)

pack = struct.Struct("=11Q").pack_into


class ReducedFile:
    """The mapped file."""

    def __init__(self, path: str) -> None:
        """Raises OSError, or ValueError if the file is not as it should be."""
        import mmap

        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size < FILE_BYTES:
                raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
            self.octets = memoryview(mmap.mmap(descriptor, FILE_BYTES))
        finally:
            os.close(descriptor)
        self.cells = self.octets.cast("Q")
        if bytes(self.octets[: len(MAGIC)]) != MAGIC or self.cells[VERSION_CELL] != VERSION:
            raise ValueError(f"{path} is not a file of reduced values of version {VERSION}")
        self.every = self.cells[EVERY_CELL]

    def claim(self) -> bool:
        """Begin to write, unless another process of this worker has."""
        if self.cells[PID_CELL] in (0, os.getpid()):
            self.cells[PID_CELL] = os.getpid()
            self.cells[STATE_CELL] = ARMED
            return True
        return False

    def write(self, *values: int) -> None:
        """Add a record of ten values."""
        cells = self.cells
        count = cells[COUNT_CELL]
        place = RECORDS_AT_CELL + RECORD_CELLS * (count % RECORDS)
        cells[place + RECORD_CELLS - 1] = 0
        pack(self.octets, 8 * place, *values, 0)
        cells[place + RECORD_CELLS - 1] = cells[COUNT_CELL] = count + 1

    def give_up(self) -> None:
        """Note that nothing more comes."""
        self.cells[STATE_CELL] = GIVEN_UP
