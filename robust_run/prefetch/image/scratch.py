"""Where an image is built: a hidden folder beside it, which goes with its builder.

A builder that is killed leaves a folder as large as its image. The next build beside it removes that. Who builds holds a lock,
which ends with its process; and as a lock on a shared file system may not be seen by other machines, each removes only what it
has left itself since it was started.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PREFIX = ".robust-image-"


@contextmanager
def scratch_in(folder: str) -> Iterator[str]:
    """Give a folder in this one, for the block. What dead builders under this kernel left there is removed. Raises OSError."""
    prefix = f"{_PREFIX}{_kernel()}-"
    _remove_left(folder, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as scratch:
        lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks: then nobody gets one to remove it either
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield scratch
        finally:
            os.close(lock)


def _kernel() -> str:
    """Return what no other running kernel has; a name of a machine may be that of many."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip().replace("-", "")[:12]
    except OSError:
        return f"of-{os.getpid()}"


def _remove_left(folder: str, prefix: str) -> None:
    for name in os.listdir(folder):
        if name.startswith(prefix):
            with suppress(OSError):
                _remove_if_free(os.path.join(folder, name))


def _remove_if_free(scratch: str) -> None:
    lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # One that is being made is empty and not locked yet.
        if os.stat(lock).st_uid == os.geteuid() and os.listdir(lock):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(scratch)
    finally:
        os.close(lock)
