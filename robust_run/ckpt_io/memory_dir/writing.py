"""A file that a program writes into the folder, until it is what its name stands for.

When that is, and when it never is, is as `ckpt_io.mount.closing` says; but a file that is not whole is not kept aside.
"""

from __future__ import annotations

import errno
import threading
from typing import Protocol

from robust_run.ckpt_io.foreign.ends import End, end_of, whole_zip_ends_in
from robust_run.ckpt_io.foreign.torch_records import missing_records
from robust_run.ckpt_io.memory_dir.memory_file import MemoryFile
from robust_run.ckpt_io.mount.authors import Authors

_CHUNK_BYTES = 8 << 20
#: Longer than the last record of a zip archive, with what precedes it.
_OVERLAP_BYTES = 128


class Make(Protocol):
    """Makes an empty file."""

    def __call__(self, *, in_memory: bool) -> MemoryFile:
        """Return it. Raises OSError (ENOSPC): there is no room."""
        ...


class WrittenFile:
    """One opening of a name for writing: a file of its own, whoever else writes under that name."""

    def __init__(self, name: str, mode: int, opener: int | None, make: Make) -> None:
        """It is empty. `make`: makes an empty file, in memory or where there is room for it."""
        self.name = name
        """What it is to be called; empty: it was removed while it was being written."""
        self.data = make(in_memory=True)
        self.mode = mode
        self.authors = Authors(opener)
        self.lock = threading.RLock()
        self.processes: dict[int, int | None] = {}
        """Process of each thread that wrote."""
        self.failure: OSError | None = None
        self.is_committed = False
        """What it holds is what its name stands for, and not to be changed."""
        self.is_new = True
        """Nothing was ever committed."""
        self._make = make

    @property
    def has_bytes(self) -> bool:
        """Whether some are not committed."""
        return not self.is_committed and self.data.size_bytes > 0

    def write(self, data: memoryview, offset_bytes: int) -> int:
        """Take bytes. Raises OSError: the file has failed then, for all that close it."""
        with self.lock:
            self._check()
            try:
                self._unshare()
                try:
                    return self.data.write(data, offset_bytes)
                except OSError as error:
                    self._spill(error)
                    return self.data.write(data, offset_bytes)
            except OSError as error:
                self.give_up(error)
                raise

    def truncate(self, size_bytes: int) -> None:
        """Cut it, or make it longer. Raises OSError."""
        with self.lock:
            self._check()
            self._unshare()
            self.data.truncate(size_bytes)

    def give_up(self, error: OSError) -> None:
        """It will never be there; its memory is needed no longer."""
        with self.lock:
            # Not the error itself: what is on its traceback would keep the memory.
            self.failure = self.failure or OSError(error.errno, error.strerror)
            if not self.is_committed:
                self.data = self._make(in_memory=True)

    def _check(self) -> None:
        if self.failure is not None:
            raise OSError(self.failure.errno, self.failure.strerror)

    def _unshare(self) -> None:
        """Go on with a copy of what was committed."""
        if self.is_committed:
            committed = self.data
            self.data, self.is_committed = self._make(in_memory=True), False
            self.begin_with(committed.descriptor, committed.size_bytes)

    def begin_with(self, descriptor: int, size_bytes: int) -> None:
        """Copy the beginning of another file into it. Raises OSError."""
        with self.lock:
            try:
                self.data.fill_from(descriptor, size_bytes)
            except OSError as error:
                self._spill(error)
                self.data.fill_from(descriptor, size_bytes)

    def _spill(self, error: OSError) -> None:
        """Go on where there is room. Raises OSError: the one that was met, if that is nowhere."""
        if error.errno not in (errno.ENOSPC, errno.ENOMEM) or self.data.place:
            raise error
        spilled = self._make(in_memory=False)
        spilled.fill_from(self.data.descriptor, self.data.size_bytes)
        self.data = spilled

    @property
    def end(self) -> End:
        """Whether its format shows that nothing is missing, or that something is."""
        return end_of(self.data.read, self.data.size_bytes)[0]

    def what_is_missing(self) -> str:
        """Return what shows that it is not whole, in words; empty if nothing does."""
        data = self.data
        end, why = end_of(data.read, data.size_bytes)
        if end == "cut off":
            return "" if why.startswith("it is a zip") and _has_a_whole_zip_at_its_front(data) else why
        return missing_records(data.read, data.size_bytes) if data.read(0, 4) == b"PK\x03\x04" else ""


def _has_a_whole_zip_at_its_front(data: MemoryFile) -> bool:
    """Programs write more behind a torch.save."""
    before = b""
    for at in range(0, data.size_bytes, _CHUNK_BYTES):
        piece = before + data.read(at, _CHUNK_BYTES)
        if whole_zip_ends_in(piece, at - len(before)):
            return True
        before = piece[-_OVERLAP_BYTES:]
    return False


def closed_wrong(why: str) -> OSError:
    """Return what a program is told that closes a file which is not saved."""
    return OSError(errno.EIO, why)
