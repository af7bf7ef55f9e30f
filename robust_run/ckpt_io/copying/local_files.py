"""Files of this machine that are filled piece by piece.

Their names can be guessed, so nothing is written through a link that another user put there: O_NOFOLLOW, and regular files only.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from robust_run.errors import PlatformError
from robust_run.store.buffers import write_at
from robust_run.store.errors import from_os_error

_SYNCS = 16


def open_plain(path: str, flags: int) -> int:
    """Open a regular file, but no link, pipe or device. Raises OSError (ELOOP for a link)."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", path)
    return descriptor


def refused(error: OSError, path: str) -> PlatformError:
    """Return ours for an error of opening or writing a file whose name can be guessed."""
    if error.errno == errno.ELOOP:
        return PlatformError(f"{path} is a symbolic link, and nothing is written through one: remove it")
    return from_os_error(error, path, "")


def lay_out(path: str, size: int) -> None:
    """Make a file of its final length, without bytes yet; one that is there keeps what it has."""
    try:
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refused(error, path) from error


def write_piece(path: str, data: memoryview, offset: int) -> None:
    """Write into a file that was laid out. Raises PlatformError."""
    try:
        descriptor = open_plain(path, os.O_WRONLY)
        try:
            write_at(descriptor, data, offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refused(error, path) from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it where the descriptor stands. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def read_bytes(path: str, offset: int, size: int) -> bytes | None:
    """Return bytes of a local file, None if it does not have them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.pread(descriptor, size, offset)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found if len(found) == size else None


def make_link(path: str, target: str) -> None:
    """Have a symbolic link at a path, in the place of another link or file. Raises OSError."""
    temporary = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.restoring")
    os.symlink(target, temporary)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sync_files(files: Iterable[str]) -> None:
    """Make files and their names durable. Raises StoreError."""
    files = list(files)
    sync_paths(files)
    sync_paths({os.path.dirname(path) for path in files})


def sync_paths(paths: Iterable[str]) -> None:
    """Make files, or the names in folders, durable; many at a time, which disks like. Raises StoreError."""
    with ThreadPoolExecutor(_SYNCS, thread_name_prefix="sync") as threads:
        for _ in threads.map(_sync, paths):
            pass


def _sync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, path, "") from error
