"""The folder below the one in memory: what is looked up there, and how a file gets there whole."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress

from robust_run.ckpt_io.memory_dir.kept import Kept
from robust_run.ckpt_io.memory_dir.memory_file import MemoryFile
from robust_run.ckpt_io.memory_dir.types import STAGING_PREFIX
from robust_run.store.local_writing import make_folders, start_writing, sync_folder

_CHUNK_BYTES = 8 << 20


class WrittenWrong(OSError):  # noqa: N818 - an OSError for whoever writes files
    """What was read back is not what was written."""


class Storage:
    """One folder, which need not exist yet. Paths are relative to it; all raise OSError."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._staging = os.path.join(root, f"{STAGING_PREFIX}{uuid.uuid4().hex[:12]}")

    def place(self, path: str) -> str:
        """Return the absolute path."""
        return os.path.join(self.root, path) if path else self.root

    def status(self, path: str) -> os.stat_result | None:
        """Return what is there, links not followed; None: nothing."""
        try:
            return os.lstat(self.place(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            return [name for name in os.listdir(self.place(path)) if not name.startswith(STAGING_PREFIX)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def stage(self, kept: Kept, wrote: Callable[[int], None]) -> str:
        """Bring a file or a link into storage, durable and verified, under a name of no meaning; return that."""
        name = self.new_name()
        _bring(kept, name, wrote)
        return name

    def new_name(self) -> str:
        """Return a name of no meaning that nothing has yet, in a folder that is there."""
        make_folders(self._staging, durable=False)
        return os.path.join(self._staging, uuid.uuid4().hex)

    def stage_folder(self) -> str:
        """Make a folder under a name of no meaning; return that."""
        name = self.new_name()
        os.mkdir(name)
        return name

    def stage_in(self, top: str, path: str, kept: Kept, wrote: Callable[[int], None]) -> None:
        """Bring a folder, file or link into a folder that is staged."""
        place = os.path.join(top, path)
        if kept.kind == "folder":
            make_folders(place, durable=False)
        else:
            make_folders(os.path.dirname(place), durable=False)
            _bring(kept, place, wrote)

    def publish_folder(self, top: str, path: str) -> bool:
        """Give a folder that is staged its name; False if storage has something of that name."""
        staged = os.path.join(top, path)
        if self.status(path) is not None:
            return False
        make_folders(os.path.dirname(self.place(path)), durable=True)
        for folder, _, _ in os.walk(staged):
            sync_folder(folder)
        os.rename(staged, self.place(path))
        sync_folder(os.path.dirname(self.place(path)))
        return True

    def discard_folder(self, top: str) -> None:
        """Remove what is left of a folder that was staged."""
        shutil.rmtree(top, ignore_errors=True)

    def discard(self, staged: str) -> None:
        """Remove what was staged and is not wanted any more."""
        with suppress(OSError):
            os.unlink(staged)

    def publish(self, staged: str, path: str) -> None:
        """Give what was staged its name, at once; an empty folder that has it goes. What is not published is discarded."""
        place = self.place(path)
        try:
            make_folders(os.path.dirname(place), durable=True)
            try:
                os.rename(staged, place)
            except IsADirectoryError:
                os.rmdir(place)
                os.rename(staged, place)
        except OSError:
            self.discard(staged)
            raise
        sync_folder(os.path.dirname(place))

    def make_folder(self, path: str) -> None:
        """Make a folder; a file that has its name goes."""
        place = self.place(path)
        status = self.status(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            os.unlink(place)
        make_folders(place, durable=True)

    def move(self, old: str, new: str) -> None:
        """Give a file another name."""
        make_folders(os.path.dirname(self.place(new)), durable=True)
        os.rename(self.place(old), self.place(new))
        sync_folder(os.path.dirname(self.place(new)))

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder, if there is one; a folder that is not empty stays."""
        status = self.status(path)
        if status is None:
            return
        try:
            if stat.S_ISDIR(status.st_mode):
                os.rmdir(self.place(path))
            else:
                os.unlink(self.place(path))
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def clear_staging(self, *, of_others: bool) -> None:
        """Remove what is half written: ours, or `of_others`, whose job was killed."""
        if of_others:
            with suppress(OSError):
                for name in os.listdir(self.root):
                    if name.startswith(STAGING_PREFIX):
                        shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)
        else:
            shutil.rmtree(self._staging, ignore_errors=True)


def _bring(kept: Kept, name: str, wrote: Callable[[int], None]) -> None:
    if kept.data is None:
        os.symlink(kept.target, name)
        return
    if kept.data.place and _linked(kept.data, name):
        wrote(kept.data.size_bytes)
        return
    source, size_bytes = kept.data.descriptor, kept.data.size_bytes
    copy = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _copy(source, copy, size_bytes, wrote)
        os.fchmod(copy, kept.mode)
        os.fsync(copy)
        _compare(source, copy, size_bytes)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    finally:
        os.close(copy)  # on network file systems this is where a full disk may show


def _linked(data: MemoryFile, name: str) -> bool:
    """Give a file that lies in storage a second name; False where that cannot be."""
    try:
        os.fsync(data.descriptor)
        os.link(data.place, name)
    except OSError:
        return False
    return True


def _copy(source: int, copy: int, size_bytes: int, wrote: Callable[[int], None]) -> None:
    at = 0
    while at < size_bytes:
        done = os.sendfile(copy, source, at, min(_CHUNK_BYTES, size_bytes - at))
        if not done:
            raise WrittenWrong(errno.EIO, f"{at} of {size_bytes} bytes could be read")
        start_writing(copy, at, done)
        at += done
        wrote(done)


def _compare(source: int, copy: int, size_bytes: int) -> None:
    """Read back what was written, from the disk where the kernel can be told to."""
    os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
    for at in range(0, size_bytes, _CHUNK_BYTES):
        if os.pread(source, _CHUNK_BYTES, at) != os.pread(copy, _CHUNK_BYTES, at):
            raise WrittenWrong(errno.EIO, f"what was read back differs from byte {at} on or later")
    if os.fstat(copy).st_size != size_bytes:
        raise WrittenWrong(errno.EIO, "what was read back is longer than what was written")
