"""Writing one file through fsspec: pieces in order, under a name of its own where files do not appear at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from robust_run.store.buffers import byte_views
from robust_run.store.errors import StoreError
from robust_run.store.local_writing import PART_PREFIX, PART_SUFFIX
from robust_run.store.watching import CallProgress

#: What a range must come with at least, in the time for a stall and on top of it: fsspec says nothing before it has all of it.
SLOWEST_BYTES_PER_S = 1e6


class FsspecWriter:
    """A `Writer` of one file of an fsspec file system."""

    any_order = False

    def __init__(
        self,
        files: Any,
        call: Callable[..., Any],
        url: str,
        path: str,
        place: str,
        is_whole_at_once: bool,
        size_bytes: int | None,
    ) -> None:
        """Begins the file, and the folders above it."""
        self._files, self._call, self._url, self._path, self._place = files, call, url, path, place
        self._size_bytes, self._at, self._is_closed = size_bytes, 0, False
        folder, _, _ = place.rpartition("/")
        temporary = f"{folder}/{PART_PREFIX}{uuid.uuid4().hex}{PART_SUFFIX}"
        self._written = place if is_whole_at_once else temporary

        def begin(_progress: CallProgress) -> Any:
            if folder:
                files.makedirs(folder, exist_ok=True)
            return files.open(self._written, "wb")

        self._file = call(path, begin)

    def write_at(self, offset_bytes: int, buffers: Sequence[memoryview]) -> None:
        """Write the buffers; the offset must be where the last ones ended."""
        self._check_open()
        if offset_bytes != self._at:
            raise StoreError(self._url, self._path, f"this file grows at its end, {self._at}, not at {offset_bytes}")
        for view in byte_views(buffers, to_fill=False):
            more_s = len(view) / SLOWEST_BYTES_PER_S
            self._call(self._path, lambda _, data=bytes(view): self._file.write(data), more_s=more_s)
            self._at += len(view)

    def finish(self) -> None:
        """Complete the upload."""
        self._check_open()
        if self._size_bytes is not None and self._at != self._size_bytes:
            raise StoreError(self._url, self._path, f"{self._at} bytes were written of {self._size_bytes}")
        self._call(self._path, lambda _: self._file.close(), more_s=self._at / SLOWEST_BYTES_PER_S)
        if self._written != self._place:
            self._call(self._path, lambda _: self._files.mv(self._written, self._place))
        self._is_closed = True

    def abort(self) -> None:
        """Drop what was written; on an object store nothing of it was ever to be seen."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(Exception):
            self._call(self._path, lambda _: self._file.discard())
        with suppress(AttributeError):
            self._file.closed = True  # or it would complete the upload when it is collected
        if self._written != self._place:
            with suppress(Exception):
                self._call(self._path, lambda _: self._files.rm_file(self._written))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(self._url, self._path, "is not being written any more")
