"""What the kernel asks of a read-only mount, and our answers."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mfusepy

from robust_run.ckpt_io.errors import CheckpointError, CutShort, FailedBefore, OutOfOrder, Replaced, TargetLost
from robust_run.ckpt_io.views.cache import UnitCache
from robust_run.ckpt_io.views.reader import AddressSink, Track, ViewReader
from robust_run.ckpt_io.views.shelf import OpenCheckpoint
from robust_run.ckpt_io.views.tree import TreeNode, ViewTree
from robust_run.errors import RobustRunError
from robust_run.store.errors import AccessDenied, AlreadyExists, BadPath, NoSpace, NotFound, ReadOnly, StoreError

#: What Python's open() makes its buffer of.
BLOCK_BYTES = 128 << 10
_ERRNOS: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, errno.ENOENT),
    (BadPath, errno.ENOENT),
    (AccessDenied, errno.EACCES),
    (ReadOnly, errno.EROFS),
    (AlreadyExists, errno.EEXIST),
    (Replaced, errno.ESTALE),
    (CutShort, errno.EINVAL),
    (OutOfOrder, errno.ESPIPE),
)


def log(message: str) -> None:
    """Say something in the mount's log: a program that reads files only sees an error number."""
    sys.stderr.write(f"robust: {message}\n")
    sys.stderr.flush()


class ReadHandle:
    """A file that a process has open for reading."""

    def __init__(self, opened: OpenCheckpoint, reader: ViewReader) -> None:
        self.opened = opened
        self.reader = reader
        self.track = Track()


class ReadOnlyOperations(mfusepy.Operations):  # type: ignore[misc,unused-ignore]
    """A tree of checkpoints, for reading. Called from several threads."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, tree: ViewTree, cache: UnitCache, on_ready: Callable[[], None], timeout_s: float = 1.0) -> None:
        """`on_ready` is called when the kernel has taken the mount; the kernel believes what it was told for `timeout_s`."""
        self.tree = tree
        self.cache = cache
        self._on_ready = on_ready
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._handles: dict[int, Any] = {}
        self._last_said = ""

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:  # noqa: ARG002
        """The kernel has taken the mount."""
        if config_3 is not None:
            config_3.entry_timeout = config_3.attr_timeout = self._timeout_s
            config_3.negative_timeout = 0.0
            config_3.auto_cache = 1
            config_3.hard_remove = 1
        self._on_ready()

    def destroy(self, path: str) -> None:  # noqa: ARG002
        """The mount is gone."""
        self.cache.close()
        self.tree.close()

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        """What `stat` shows. The kernel names the file by path, or an open one by number."""
        handle = self._handles.get(fh) if fh is not None else None
        if isinstance(handle, ReadHandle):
            return self.file_attributes(handle.reader.file.size_bytes, handle.opened.source.manifest.created_s)
        if path is None:
            raise OSError(errno.EBADF, "not open")
        with self.said(path):
            return self.attributes(self.tree.look(inner(path)))

    def opendir(self, path: str) -> int:
        """Note which folder it is: later calls name only the number."""
        return self.keep(path)

    def readdir(self, path: str | None, fh: int) -> Any:  # noqa: ARG002
        """What `ls` shows."""
        folder = self._handles.get(fh, "/")
        with self.said(folder):
            names = self.names(folder)
        return [".", "..", *names]

    def releasedir(self, path: str | None, fh: int) -> int:  # noqa: ARG002
        """It is closed."""
        self.drop(fh)
        return 0

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return list(self.tree.list(inner(path)))

    def open(self, path: str, flags: int) -> int:
        """Open for reading."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "read-only")
        with self.said(path):
            node = self.tree.look(inner(path))
            if node.file is None or node.opened is None:
                raise OSError(errno.EISDIR, "a folder")
            self.tree.shelf.use(node.opened)
            return self.keep(ReadHandle(node.opened, ViewReader(node.opened.source, node.file, self.cache)))

    def read_to(self, address: int, size: int, offset: int, fh: int) -> int:
        """Copy bytes to an address; less only at the end of the file."""
        handle = self._handles.get(fh)
        if not isinstance(handle, ReadHandle):
            raise OSError(errno.EBADF, "not open for reading")
        with self.said(handle.reader.file.name):
            try:
                return handle.reader.copy(offset, size, AddressSink(address), handle.track)
            except TargetLost:
                self.tree.shelf.reopen(handle.opened)  # for who opens it next: the target may be back
                raise

    def write_from(self, data: memoryview, offset: int, fh: int) -> int:  # noqa: ARG002
        """Refuse."""
        raise OSError(errno.EROFS, "read-only")

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Announce that reading is possible; `DirectFuse` calls `read_to`."""
        raise NotImplementedError

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002
        """The last descriptor of an open file is closed."""
        handle = self.drop(fh)
        if isinstance(handle, ReadHandle):
            self.tree.shelf.give_back(handle.opened)
        return 0

    def statfs(self, path: str) -> dict[str, int]:  # noqa: ARG002
        """What `df` shows: nothing of use, but no error."""
        return {
            "f_bsize": BLOCK_BYTES,
            "f_frsize": 4096,
            "f_blocks": 1 << 40,
            "f_bfree": 1 << 39,
            "f_bavail": 1 << 39,
            "f_namemax": 255,
        }

    def attributes(self, node: TreeNode) -> dict[str, Any]:
        """Return what `stat` shows of a node."""
        if node.file is None:
            return self.folder_attributes(node.modified_s, is_ours=node.opened is not None)
        return self.file_attributes(node.file.size_bytes, node.modified_s)

    def folder_attributes(self, modified_s: float, *, is_ours: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return what `stat` shows of a folder; `is_ours`: of a checkpoint."""
        return attributes(stat.S_IFDIR | 0o555, 4096, modified_s)

    def file_attributes(self, size_bytes: int, modified_s: float) -> dict[str, Any]:
        """Return what `stat` shows of a file."""
        return attributes(stat.S_IFREG | 0o444, size_bytes, modified_s)

    def keep(self, handle: Any) -> int:
        """Give an open file a number."""
        with self._lock:
            number = next(self._numbers)
            self._handles[number] = handle
            return number

    def drop(self, fh: int) -> Any:
        """Forget an open file and return it."""
        with self._lock:
            return self._handles.pop(fh, None)

    def tell(self, message: str) -> None:
        """Say why a reader was given an error."""
        log(message)

    @contextmanager
    def said(self, path: str) -> Iterator[None]:
        """Turn our errors into error numbers, and say in the log what they mean."""
        try:
            yield
        except (CheckpointError, StoreError, RobustRunError) as error:
            number = error_number(error)
            if number != errno.ENOENT and not isinstance(error, FailedBefore) and str(error) != self._last_said:
                self._last_said = str(error)
                self.tell(f"{path}: {error}")
            raise OSError(number, os.strerror(number)) from error


def error_number(error: BaseException) -> int:
    """Return the error number that a program is given for one of ours: a full disk or quota, also as a cause, by its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return cause.errno
        if isinstance(cause, NoSpace) and not isinstance(cause.__cause__, OSError):
            return errno.ENOSPC
        cause = cause.__cause__
    return next((number for kind, number in _ERRNOS if isinstance(error, kind)), errno.EIO)


def inner(path: str) -> str:
    """Return the path of a tree for one of the kernel's."""
    return path.strip("/")


def attributes(mode: int, size_bytes: int, modified_s: float) -> dict[str, Any]:
    """Return the fields of `stat`."""
    time_ns = int(modified_s * 1e9)
    return {
        "st_mode": mode,
        "st_nlink": 2 if stat.S_ISDIR(mode) else 1,
        "st_size": size_bytes,
        "st_blocks": -(-size_bytes // 512),
        "st_blksize": BLOCK_BYTES,
        "st_uid": os.getuid(),
        "st_gid": os.getgid(),
        "st_mtime": time_ns,
        "st_ctime": time_ns,
        "st_atime": time_ns,
    }
