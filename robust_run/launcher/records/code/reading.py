"""Reads files that others may have made, or may change meanwhile."""

from __future__ import annotations

import os
import stat


def read_file(path: str, most_bytes: int, *, part: bool = False) -> bytes | None:
    """Return what a file holds, None if that is more than allowed (with `part`: its beginning). Raises OSError.

    Never waits: what became a pipe or a device meanwhile is refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path!r} is no file")
        pieces, size = [], 0
        while size <= most_bytes:
            piece = os.read(descriptor, min(most_bytes + 1 - size, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
    finally:
        os.close(descriptor)
    data = b"".join(pieces)
    if part:
        return data[:most_bytes]
    return data if size <= most_bytes else None
