"""A virtual file as Python's own file object: what torch.load, numpy and zipfile take."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.ckpt_io.views.reader import Track, ViewReader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: What small reads are gathered into.
BUFFER_BYTES = 256 << 10


class ViewFile(io.RawIOBase):
    """Read-only, seekable. Not safe to use from several threads at once, as no file object is; open it once for each."""

    def __init__(self, reader: ViewReader, on_close: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._reader = reader
        self._on_close = on_close
        self._at = 0
        self._track = Track()

    @property
    def name(self) -> str:
        """Name of the virtual file."""
        return self._reader.file.name

    @property
    def mode(self) -> str:
        """As open() spells it."""
        return "rb"

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place and return it. Raises ValueError for one before the start."""
        self._check_open()
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.file.size_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"seek to {start + offset} of {self.name}: a file begins at 0")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        self._check_open()
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer; less only at the end. Raises CheckpointError or StoreError: nothing unverified is handed on."""
        self._check_open()
        got = self._reader.read_into(self._at, memoryview(buffer).cast("B"), self._track)
        self._at += got
        return got

    def close(self) -> None:
        """Close; where the checkpoint was opened for this file alone, the checkpoint too."""
        if not self.closed:
            super().close()
            if self._on_close is not None:
                self._on_close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")


def open_view(reader: ViewReader, on_close: Callable[[], None] | None = None) -> io.BufferedReader:
    """Return a file object whose large reads go straight into the caller's memory, and whose small ones cost little."""
    return io.BufferedReader(ViewFile(reader, on_close), BUFFER_BYTES)
