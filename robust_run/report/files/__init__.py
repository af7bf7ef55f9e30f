"""Files that people's tools read: written whole or not at all, and read with care."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str) -> BinaryIO:
    """Return a file open for reading. Raises OSError, also for what is no regular file.

    Another process may have put it there: a pipe or a device would hold up its reader.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return os.fdopen(descriptor, "rb")


def read_regular(path: str, most_bytes: int) -> bytes:
    """Return what a file holds. Raises OSError, also for what is no regular file, or larger than `most_bytes`."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1) if os.fstat(file.fileno()).st_size <= most_bytes else None
    if data is None or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", path)
    return data
