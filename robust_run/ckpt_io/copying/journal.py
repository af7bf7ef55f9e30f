"""Journal of a copy, to resume it: a file beside it, to which a record is appended when a unit's bytes have been written.

A record says what the bytes should be, so nothing that it names is believed: who goes on reads the bytes again, which
is far cheaper than to fetch them. Files are known by numbers that stay theirs, also if others come or go.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import zlib
from collections import defaultdict
from collections.abc import Container

from robust_run.ckpt_io.copying.local_files import open_plain, refused, write_all
from robust_run.errors import UserError

_FIELDS = struct.Struct("<QQ16s")
_RECORD = struct.Struct("<QQ16sI")
#: Instead of a unit: the record says of which version of the file the units are.
VERSION = (1 << 64) - 1
SUFFIX = ".restore-journal"
"""Of its name; what stands before it is the destination's, with a dot."""
_HEAD_BYTES = 64 << 10
#: How often another one may take a journal away between its being opened and locked.
_ATTEMPTS = 8
_LIMIT_BYTES = 4 << 30
Unit = tuple[int, int]
"""File and unit."""


class CopyJournal:
    """The journal of one copy. Safe to use from threads; of processes, one has it at a time."""

    def __init__(self, path: str, identity: str) -> None:
        """Open it, or begin it anew if it is of another source (or damaged). `identity`: what is copied, as one line.

        Raises:
            UserError: Another process has it open.
            PlatformError: It cannot be written to, or is a link.
        """
        self.path = path
        self.done: dict[Unit, bytes] = {}
        """Digests of the units that were written, as they were when it was opened."""
        self._lock = threading.Lock()
        try:
            self._file = _open_locked(path)
        except OSError as error:
            raise refused(error, path) from error
        try:
            self._begin(identity)
        except OSError as error:
            self.close()
            raise refused(error, path) from error

    def _begin(self, identity: str) -> None:
        head = identity.replace("\n", " ").encode()[: _HEAD_BYTES - 1] + b"\n"
        found = _read(self._file)
        self.is_new = not found
        """There was none: no copy was begun here."""
        if found.startswith(head):
            end = self._take(found, len(head))
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
        else:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            write_all(self._file, head)

    def forget(self, files: Container[int]) -> None:
        """Believe nothing of what was noted of these files; for good once their new version is noted."""
        self.done = {key: digest for key, digest in self.done.items() if key[0] not in files}

    def note(self, file: int, unit: int, digest: bytes) -> None:
        """A unit's bytes have been written."""
        fields = _FIELDS.pack(file, unit, digest)
        try:
            with self._lock:
                write_all(self._file, fields + struct.pack("<I", zlib.crc32(fields)))
        except OSError as error:
            raise refused(error, self.path) from error

    def close(self) -> None:
        """Close it, for the next time."""
        os.close(self._file)

    def remove(self) -> None:
        """The copy is whole."""
        os.unlink(self.path)

    def __enter__(self) -> CopyJournal:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _take(self, found: bytes, at: int) -> int:
        """Read records up to the first that is torn; return where it begins."""
        files: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        while at + _RECORD.size <= len(found):
            file, unit, digest, crc = _RECORD.unpack_from(found, at)
            if zlib.crc32(found[at : at + _RECORD.size - 4]) != crc:
                break
            if unit == VERSION and files[file].get(VERSION, digest) != digest:
                files[file].clear()  # what comes before is of another version
            files[file][unit] = digest
            at += _RECORD.size
        self.done = {(file, unit): digest for file, units in files.items() for unit, digest in units.items()}
        return at


def _open_locked(path: str) -> int:
    """Open a journal for this process alone. Raises UserError, OSError."""
    for _ in range(_ATTEMPTS):
        file = open_plain(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(file, path)
            if os.path.samestat(os.fstat(file), os.lstat(path)):
                return file
        except FileNotFoundError:  # the one that had it is done, and has removed it
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise _busy(path)


def _lock(file: int, path: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _busy(path) from error
    except OSError as error:  # some network file systems have no locks: then it is up to the user
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def _busy(path: str) -> UserError:
    folder, name = os.path.split(path)
    destination = os.path.join(folder, name.removeprefix(".").removesuffix(SUFFIX))
    return UserError(f"another restore to {destination} is under way: wait for it, or name another folder")


def _read(file: int) -> bytes:
    size = min(os.fstat(file).st_size, _LIMIT_BYTES)
    found = b""
    while len(found) < size:
        data = os.pread(file, size - len(found), len(found))
        if not data:
            break
        found += data
    return found
