"""Work folders of builds. Each is locked by its builder, so that the next builder can tell that it was killed.

The kernel gives a lock back when its holder ends, however it ends. Where there are no locks, and for builders under another
kernel (a folder of several machines, or from before a reboot), age tells.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from contextlib import suppress

PREFIX = "robust-setup-"
_LOCK, _NEW = "lock", ".new"
#: The locks of this process, by folder.
_held: dict[str, int] = {}


def make_work(parent: str) -> str:
    """Make a folder of our own below another, and return it; it is given to `remove_work` in the end. Raises OSError."""
    folder = os.path.join(os.path.realpath(parent), f"{PREFIX}{uuid.uuid4().hex}")
    new = folder + _NEW  # until it is locked
    os.mkdir(new, 0o755)
    descriptor = os.open(os.path.join(new, _LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, _kernel())
    except OSError:  # no locks here
        os.close(descriptor)
        os.unlink(os.path.join(new, _LOCK))
    else:
        _held[folder] = descriptor
    os.rename(new, folder)
    return folder


def remove_work(folder: str) -> None:
    """Remove a work folder. An overlay leaves a folder in it that even its owner may not enter. Raises nothing."""
    for name in ("", *(_entries(folder))):
        with suppress(OSError):
            os.chmod(os.path.join(folder, name), 0o700)
            if name.startswith(("o", "v")):
                for below in _entries(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name, below), 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        _open_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def sweep(parent: str, older_than_s: float, now_unix_s: float) -> list[str]:
    """Remove the work folders of builders that were killed, and return them. Raises OSError.

    `older_than_s`: where no lock tells, they are taken for such from this age on. A lock of this machine counts at any age: its
    clock may have been set.
    """
    found = []
    for item in list(os.scandir(parent)):
        if not item.name.startswith(PREFIX) or not item.is_dir(follow_symlinks=False):
            continue
        with suppress(OSError):  # another process removes it, or it is another user's
            if _is_left(item.path, item.stat(follow_symlinks=False).st_mtime, older_than_s, now_unix_s):
                remove_work(item.path)
                found.append(item.path)
    return found


def _is_left(folder: str, modified_s: float, older_than_s: float, now_unix_s: float) -> bool:
    """Whether no builder works in a folder."""
    is_old = now_unix_s - modified_s > older_than_s
    if folder.endswith(_NEW):
        return is_old
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return is_old
    try:
        if os.read(descriptor, 64) != _kernel():
            return is_old
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _kernel() -> bytes:
    """Return what no other running kernel has."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).strip()
    except OSError:
        return b"unknown"


def _open_all(folder: str) -> None:
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            place = os.path.join(parent, name)
            if not os.path.islink(place):
                with suppress(OSError):
                    os.chmod(place, 0o700)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
