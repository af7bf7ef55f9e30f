"""The files and folders of the folder that are open, by the number that the kernel has for each."""

from __future__ import annotations

import errno
import itertools
import os
import threading

from robust_run.ckpt_io.memory_dir.kept import Kept
from robust_run.ckpt_io.memory_dir.writing import WrittenFile


class Reading:
    """A file that is open for reading: of memory, which it keeps alive, or of storage."""

    def __init__(self, descriptor: int, kept: Kept | None) -> None:
        self.descriptor, self.kept = descriptor, kept

    def close(self) -> None:
        """Let it go."""
        if self.kept is None:
            os.close(self.descriptor)


Handle = Reading | WrittenFile | str
"""What is open; a folder by its name."""


class OpenFiles:
    """All of them. Used by several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._handles: dict[int, Handle] = {}

    def get(self, number: int | None) -> Handle | None:
        """Return what has this number; None: nothing."""
        return self._handles.get(number) if number is not None else None

    def keep(self, handle: Handle) -> int:
        """Give it a number."""
        with self.lock:
            number = next(self._numbers)
            self._handles[number] = handle
            return number

    def drop(self, number: int) -> None:
        """Forget it."""
        with self.lock:
            self._handles.pop(number, None)

    def written(self, number: int) -> WrittenFile:
        """Return the file that is written. Raises OSError: it is none."""
        handle = self._handles.get(number)
        if not isinstance(handle, WrittenFile):
            raise OSError(errno.EBADF, "not open for writing")
        return handle

    def all_written(self) -> list[WrittenFile]:
        """Return all that are written."""
        with self.lock:
            return [handle for handle in self._handles.values() if isinstance(handle, WrittenFile)]

    def writers(self, name: str) -> list[WrittenFile]:
        """Return what is being written under a name and has not failed; what was begun last is the last."""
        return [each for each in self.all_written() if name and each.name == name and each.failure is None]
