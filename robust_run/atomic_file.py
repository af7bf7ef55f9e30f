"""Atomic replacement of files (write, fsync, rename): a reader finds the old content or the new one, never a part of it."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress


def write_file(path: str, data: bytes, *, draft: str = "", mode: int = 0o666, durable: bool = False) -> None:
    """Write or replace a file in one step. Raises OSError, and then the draft is gone; also where the name is that of a device
    or a pipe, or a link leads to one: root would put a file in the place of /dev/null.

    `draft`: what it is called until it is whole, in the same file system; it is no other process's. `mode`: less the umask; of a
    secret 0o600. `durable`: it is on the disk before it has its name.
    """
    _refuse_devices(path)
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


def _refuse_devices(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # nothing is there, or what comes says so
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "It is no regular file", path)
