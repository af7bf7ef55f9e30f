"""Local and mounted file systems: preadv straight into the caller's buffers, files that appear whole.

A file that is being written has no name (O_TMPFILE), so a process that is killed leaves nothing behind; where the file system
cannot do that, it has a name of its own that begins with `.robust-` and ends with `.part`.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from robust_run.store import paths
from robust_run.store.buffers import byte_views, total_bytes, without
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, NotFound, ShortRead, StoreError, TooLarge, from_os_error
from robust_run.store.local_writing import LocalWriter
from robust_run.store.types import Entry, Kind, StoreOptions, Walked

#: Buffers that one system call takes (IOV_MAX of Linux).
_MOST_BUFFERS = 1024
#: A named pipe or a terminal must not keep `open` waiting.
_OPEN_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_THREADS = 8
#: Reads of so many bytes are worth a word to the kernel.
_LONG_BYTES = 1 << 20


class LocalStore:
    """One folder of this machine's. Symbolic links are followed when reading, and never when removing or replacing."""

    def __init__(self, root: str, options: StoreOptions) -> None:
        """`root` is an absolute path; it need not exist yet."""
        self.url = root
        self._root = root
        self.threads = options.threads or max(2, min(_MOST_THREADS, os.cpu_count() or 1))

    @property
    def writable(self) -> bool:
        """Whether the folder, or the nearest one above it that exists, lets us write."""
        folder = self._root
        while not os.path.lexists(folder) and folder != "/":
            folder = os.path.dirname(folder)
        return os.access(folder, os.W_OK | os.X_OK)

    def read_into(
        self, path: str, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation | None = None
    ) -> None:
        """Fill all buffers; see `Store`."""
        with self._open(path) as (descriptor, _):
            left = byte_views(buffers, to_fill=True)
            wanted = total_bytes(left)
            at = offset_bytes
            if wanted >= _LONG_BYTES:  # a descriptor that was just opened begins to read ahead in small steps
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while left:
                if cancel is not None and cancel.cancelled:
                    raise Cancelled(self.url, path, "called off")
                got = os.preadv(descriptor, left[:_MOST_BUFFERS], at)
                if not got:
                    raise ShortRead(self.url, path, offset_bytes, wanted, at - offset_bytes)
                at += got
                left = without(left, got)

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        """Return a whole file; see `Store`."""
        with self._open(path) as (descriptor, size_bytes):
            if size_bytes > limit_bytes:
                raise TooLarge(self.url, path, f"has {size_bytes} bytes: at most {limit_bytes} are read")
            found = bytearray()
            while piece := os.read(descriptor, min(limit_bytes + 1 - len(found), 1 << 20)):
                found += piece
                if len(found) > limit_bytes:
                    raise TooLarge(self.url, path, f"grew while it was read: at most {limit_bytes} bytes are read")
            return bytes(found)

    def size_bytes(self, path: str) -> int:
        """Return the length of a file; see `Store`."""
        with self._open(path) as (_, size_bytes):
            return size_bytes

    def list(self, path: str = "") -> list[Entry]:
        """Return what a folder holds; names that no path can have are left out."""
        folder = self._place(path, folder=True)
        found = []
        with naming(self.url, path), os.scandir(folder) as entries:
            for item in entries:
                if not paths.is_clean(item.name):
                    continue
                try:
                    status = item.stat()
                except FileNotFoundError:  # removed since, or a link to nothing
                    continue
                found.append(_entry(item.name, status, is_link=item.is_symlink()))
        return sorted(found, key=lambda entry: entry.name)

    def walk(self, path: str = "") -> tuple[Walked, ...]:
        """Return everything below a folder; see `Store`."""
        place = self._place(path, folder=True)
        try:
            return tuple(sorted(walk(place), key=lambda walked: walked.path))
        except OSError as error:
            where = os.path.relpath(error.filename, self._root) if error.filename else path
            raise from_os_error(error, self.url, "" if where == "." else where) from error

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> LocalWriter:
        """Begin a file; see `Store`. Pieces may come in any order, from any thread."""
        place = self._place(path)
        return LocalWriter(self.url, path, place, size_bytes, durable=durable)

    def write_all(self, path: str, data: bytes, *, replace: bool = True, durable: bool = True) -> None:
        """Write a small file at once; see `Store`."""
        writer = LocalWriter(self.url, path, self._place(path), len(data), durable=durable, replace=replace)
        try:
            writer.write_at(0, [memoryview(data)])
            writer.finish()
        except BaseException:
            writer.abort()
            raise

    def remove(self, path: str) -> None:
        """Remove a file or a folder; a symbolic link is removed itself, and what lies behind one is not: see `Store`."""
        place = self._place(path)
        with naming(self.url, path):
            self._refuse_links_above(path)
            try:
                if stat.S_ISDIR(os.lstat(place).st_mode):
                    _remove_folder(place)
                else:
                    os.unlink(place)
            except (FileNotFoundError, NotADirectoryError):
                return

    def close(self) -> None:
        """Nothing is kept open."""

    def _refuse_links_above(self, path: str) -> None:
        """Raise StoreError if a folder in a path, below the root, is a link: what lies there may be no part of this store."""
        place = self._root
        for part in paths.clean(path, self.url).split("/")[:-1]:
            place = os.path.join(place, part)
            if os.path.islink(place):
                raise StoreError(self.url, path, f"not removed: {place} is a link; remove it where that leads to")

    def _place(self, path: str, *, folder: bool = False) -> str:
        checked = paths.clean_folder(path, self.url) if folder else paths.clean(path, self.url)
        return os.path.join(self._root, checked) if checked else self._root

    @contextmanager
    def _open(self, path: str) -> Iterator[tuple[int, int]]:
        """Open a regular file; give its descriptor and length."""
        place = self._place(path)
        with naming(self.url, path):
            descriptor = os.open(place, _OPEN_TO_READ)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISDIR(status.st_mode):
                    raise NotFound(self.url, path, "is a folder, not a file")
                if not stat.S_ISREG(status.st_mode):
                    raise StoreError(self.url, path, "is no regular file")
                yield descriptor, status.st_size
            finally:
                os.close(descriptor)


@contextmanager
def naming(url: str, path: str) -> Iterator[None]:
    """Turn an OSError of the block into ours."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, url, path) from error


def _entry(name: str, status: os.stat_result, *, is_link: bool) -> Entry:
    is_folder = stat.S_ISDIR(status.st_mode)
    size_bytes = 0 if is_folder else status.st_size
    return Entry(name=name, size_bytes=size_bytes, is_folder=is_folder, modified_s=status.st_mtime, is_link=is_link)


def _remove_folder(place: str) -> None:
    """Remove a folder that others may be removing as well."""

    def passes(_function: Callable[..., object], _path: str, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(place, onexc=passes)
    else:
        shutil.rmtree(place, onerror=lambda function, path, info: passes(function, path, info[1]))


# --- Everything below a folder of this machine's. Symbolic links are told, and not followed.


def walk(folder: str) -> Iterator[Walked]:
    """Yield what lies below a folder, each folder before what it holds. Raises OSError."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            opened = os.scandir(os.path.join(folder, prefix))
        except FileNotFoundError:
            if prefix:  # removed since
                continue
            raise
        with opened as entries:
            for entry in entries:
                path = os.path.join(prefix, entry.name)
                try:
                    status = entry.stat(follow_symlinks=False)
                    target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""
                except FileNotFoundError:  # removed since
                    continue
                kind = kind_of(status.st_mode)
                size_bytes = status.st_size if kind == "file" else 0
                yield Walked(
                    path=path, kind=kind, size_bytes=size_bytes, modified_s=status.st_mtime_ns / 1e9, target=target
                )
                if kind == "folder":
                    waiting.append(path)


def kind_of(mode: int) -> Kind:
    """Return what a mode says."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
