"""What the kernel asks of names in the folder: to give files, links and folders others, to make and to remove them."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

import mfusepy

from robust_run.ckpt_io.memory_dir.names import Names
from robust_run.ckpt_io.memory_dir.open_files import OpenFiles
from robust_run.ckpt_io.mount.operations import inner


class NameOperations(mfusepy.Operations):  # type: ignore[misc,unused-ignore]
    """Of `MemoryOperations`, those that touch names alone, also of what is being written. Called from several threads."""

    def __init__(self, layers: Names, files: OpenFiles) -> None:
        self._layers, self._files = layers, files

    def rename(self, old: str, new: str) -> int:
        """Give a file or folder another name; what is being written under it gets that when it is closed."""
        was, name = inner(old), inner(new)
        if self._layers.kind_of(was) != "gone":
            self._layers.rename(was, name)
        elif not self._files.writers(was):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with self._files.lock:
            for written in self._files.all_written():
                if written.name == was:
                    written.name = name
                elif written.name.startswith(f"{was}/"):
                    written.name = name + written.name[len(was) :]
                elif written.name == name:
                    written.name = ""
        return 0

    def unlink(self, path: str) -> int:
        """Remove a file. Who is writing it goes on, to nowhere."""
        name = inner(path)
        writers = self._files.writers(name)
        for written in writers:
            written.name = ""
        if not writers or self._layers.kind_of(name) != "gone":
            self._layers.remove(name)
        return 0

    def symlink(self, target: str, source: str) -> int:
        """Make a link."""
        self._layers.make_link(inner(target), source)
        return 0

    def link(self, target: str, source: str) -> int:  # noqa: ARG002
        """Refuse."""
        raise OSError(errno.EOPNOTSUPP, "no second names")

    def mkdir(self, path: str, mode: int) -> int:
        """Make a folder."""
        self._layers.make_folder(inner(path), stat.S_IMODE(mode))
        return 0

    def rmdir(self, path: str) -> int:
        """Remove an empty folder."""
        if any(each.name.startswith(f"{inner(path)}/") for each in self._files.all_written()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._layers.remove_folder(inner(path))
        return 0

    def chmod(self, path: str | None, mode: int) -> int:
        """Set the mode."""
        if path is None:
            return 0  # of a file that has no name any more
        name = inner(path)
        for written in self._files.writers(name):
            written.mode = stat.S_IMODE(mode)
        if self._layers.kind_of(name) != "gone":
            self._layers.change_mode(name, stat.S_IMODE(mode))
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:  # noqa: ARG002
        """Nothing."""
        return 0

    def utimens(self, path: str, times: Any = None) -> int:  # noqa: ARG002
        """Nothing: a file's time is when it was closed."""
        return 0
