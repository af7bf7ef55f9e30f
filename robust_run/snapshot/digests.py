"""Digests of large files that were read before: a set-up that names wheels of gigabytes is not to read them at every start.

As git does, a file is taken to be what it was while its device, inode, length, and times of change are the same. What changed in
the last seconds is not noted, as the clock of a file system may be too coarse to show that it changes again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder

#: Smaller files are read: that takes no longer.
LEAST_BYTES = 4 << 20
_NAME = "digests.json"
_LARGEST_BYTES = 4 << 20
_MOST = 5000
SETTLED_NS = 2_000_000_000


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What a file looked like when it was read."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    digest: str
    """sha256 in hex."""


class Digests:
    """What is known, by path. A folder that others may write to, or a damaged file, is as none; nothing here raises."""

    def __init__(self, folder: str | None, now_ns: Callable[[], int] = time.time_ns) -> None:
        """`folder`: where they are kept between starts; None: nowhere. `now_ns`: the clock that files are stamped by."""
        self._path = os.path.join(folder, _NAME) if folder is not None else None
        self._now_ns = now_ns
        self._known: dict[str, Known] | None = None
        self._is_changed = False

    def find(self, path: str, status: os.stat_result) -> str | None:
        """Return the digest of a file that looks as it did when it was read; None: read it."""
        if status.st_size < LEAST_BYTES:
            return None
        known = self._all().get(path)
        return known.digest if known is not None and known == _looks(status, known.digest) else None

    def note(self, path: str, status: os.stat_result, digest: str) -> None:
        """Note what was read. `status`: from before it was read."""
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        if status.st_size < LEAST_BYTES or self._now_ns() - changed_ns < SETTLED_NS:
            return
        known = self._all()
        known.pop(path, None)
        known[path] = _looks(status, digest)
        self._is_changed = True

    def save(self) -> None:
        """Keep them for the next start, where that is possible."""
        if self._path is None or not self._is_changed:
            return
        newest = dict(list(self._all().items())[-_MOST:])
        with suppress(OSError, ValueError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            write_file(self._path, msgspec.json.encode(newest), mode=0o600)

    def _all(self) -> dict[str, Known]:
        if self._known is None:
            self._known = _read(self._path) if self._path is not None else {}
        return self._known


def _looks(status: os.stat_result, digest: str) -> Known:
    return Known(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest)


def _read(path: str) -> dict[str, Known]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return {}
            return json_decoder(dict[str, Known]).decode(file.read(_LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
