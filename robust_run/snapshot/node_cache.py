"""Images of snapshots that a node keeps, and which of them go: those that no start has used for a month, when another one comes.

Who has mounted one that goes keeps it until it is let go: only its name is removed. What was unpacked stays, as people may use it
without our knowing; of it only what was never finished goes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

UNUSED_S = 30 * 86400.0
#: What was being fetched or unpacked by a process that was killed. It locks what it writes while it lives.
PART_S = 86400.0
IMAGE, SEAL, LOCK, PART = ".sqsh", ".ok", ".lock", ".part"
_DIGEST = re.compile("[0-9a-f]{64}")
_DIGEST_CHARACTERS = 64
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "tmpfs", "overlay"))


def note_use(image: str) -> None:
    """Note that a start uses an image. Raises nothing: where only others may write, others keep house."""
    with suppress(OSError):
        os.utime(image + SEAL)


def is_here_alone(folder: str) -> bool:
    """Whether a folder lies on a file system that no other machine has; False where that cannot be told."""
    from robust_run.health.sensors.job import mountinfo
    from robust_run.health.sensors.types import SensorWorld

    try:
        found = mountinfo.mount_of(os.path.realpath(folder), mountinfo.read(SensorWorld()))
    except OSError:
        return False
    return found is not None and found.kind in _LOCAL


def prune(cache: str, keep: str, now_unix_s: float, *, is_local: Callable[[str], bool] = is_here_alone) -> list[str]:
    """Remove what is not used and not finished, and return the names; `keep`: of the image that came. Raises nothing.

    Only where one kernel alone has mounted the folder: what others read would be gone for them.
    """
    removed: list[str] = []
    if not is_local(cache):
        return removed
    for folder, ending in (("images", IMAGE), ("unpacked", "")):
        top = os.path.join(cache, folder)
        with suppress(OSError):
            for name in sorted(os.listdir(top)):
                is_gone = _is_gone(top, name, ending, keep, now_unix_s)
                removed += [name] * is_gone
    return removed


def _is_gone(top: str, name: str, ending: str, keep: str, now_unix_s: float) -> bool:
    """Remove a file or folder if it is one of those that go; whether it was."""
    if not _DIGEST.match(name):
        return False
    path, whole = os.path.join(top, name), name[: _DIGEST_CHARACTERS + len(ending)]
    is_part = name.endswith(PART) and name.startswith(whole + ".")
    is_image = bool(ending) and name == whole and name.endswith(ending) and name != keep
    with suppress(OSError):
        if is_part and now_unix_s - os.lstat(path).st_mtime > PART_S:
            with _locked(os.path.join(top, whole + LOCK)):
                _remove(path)
                return True
        if is_image and _is_unused(path, now_unix_s):
            with _locked(path + LOCK):
                if _is_unused(path, now_unix_s):  # still: a start may have come before the lock
                    os.unlink(path + SEAL)
                    os.unlink(path)
                    return True
    return False


def _is_unused(image: str, now_unix_s: float) -> bool:
    """Whether no start has used an image for long. Raises OSError where it is not sealed."""
    return now_unix_s - os.lstat(image + SEAL).st_mtime > UNUSED_S


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of whoever fetches or unpacks. Raises OSError where somebody does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
