"""Files of this machine that are filled piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterable

from robust_run.store.errors import from_os_error


def lay_out(path: str, size: int) -> None:
    """Make a file of its final length, without bytes yet; one that is there keeps what it has."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, path, "") from error


def write_bytes(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of it. Raises OSError."""
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


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


def sync_files(files: Iterable[str]) -> None:
    """Make files and their names durable. Raises StoreError."""
    files = list(files)
    for path in files:
        sync_path(path)
    for folder in {os.path.dirname(path) for path in files}:
        sync_path(folder)


def sync_path(path: str) -> None:
    """Make a file, or the names in a folder, durable. Raises StoreError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, path, "") from error
