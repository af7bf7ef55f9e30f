"""Atomic replacement of files (write, fsync, rename): a reader finds the old content or the new one, never a part of it."""

from __future__ import annotations

import os
from contextlib import suppress


def write_file(path: str, data: bytes, *, draft: str = "", mode: int = 0o666, durable: bool = False) -> None:
    """Write or replace a file in one step. Raises OSError, and then the draft is gone.

    `draft`: what it is called until it is whole, in the same file system; it is no other process's. `mode`: less the umask; of a
    secret 0o600. `durable`: it is on the disk before it has its name.
    """
    draft = draft or f"{path}.{os.getpid()}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(draft)  # of a process that was killed; a file that is made anew has the mode that is asked for
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, mode), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
