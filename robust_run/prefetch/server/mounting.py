"""The mount of one FUSE file: made by mount(2) itself, so neither libfuse nor fusermount is needed, only the right to mount.

Root has it, and so has root of a user namespace with a mount namespace of its own. Mount in a private mount namespace: one that
others share keeps the mount for as long as anything that copied it lives.
"""

from __future__ import annotations

import errno
import os
import stat

from robust_run.mounts import syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.table import device_number


def open_device() -> int:
    """Open /dev/fuse and return the descriptor. Raises `MountRefused`."""
    try:
        return os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        advice = "load the fuse module, or have the container given the device"
        raise MountRefused(
            f"/dev/fuse: {error.strerror}: {advice}; without it the image is downloaded whole"
        ) from error


def mount(device: int, folder: str) -> int:
    """Mount the file system that is served on a /dev/fuse descriptor, and return its device number. Asks no server yet.

    Raises `MountRefused`.
    """
    options = (
        f"fd={device},rootmode={stat.S_IFDIR:o},user_id={os.geteuid()},group_id={os.getegid()}"
        f",allow_other,max_read={1 << 20}"
    )
    flags = syscalls.READ_ONLY | syscalls.NO_SETUID | syscalls.NO_DEVICES
    try:
        syscalls.mount("fuse.robust-image", folder, source="robust-image", flags=flags, options=options)
    except OSError as error:
        advice = (
            "mounting needs root, or a user namespace (`unshare -Urm`)" if error.errno == errno.EPERM else "see dmesg"
        )
        raise MountRefused(f"{folder}: cannot mount there: {error.strerror}: {advice}") from error
    mounted = device_number(folder)
    if mounted is None:
        raise MountRefused(f"{folder}: the mount is not in the table of mounts: is /proc that of another namespace?")
    return mounted


def unmount_if_idle(folder: str, mounted: int) -> bool:
    """Take our mount away if no process uses it. Return whether it is gone. `mounted`: its device number."""
    return device_number(folder) != mounted or _is_unmounted(folder)


def abort(folder: str, mounted: int) -> bool:
    """Take our mount away, and have the kernel fail every read of it that waits and that comes.

    To close /dev/fuse is not enough: a process that was forked from the keeper may hold it too, and a reader whose request was
    taken by a dead server can then not even be killed. A mount of others on the same folder is left alone.
    False: it is not there, or in another mount namespace.
    """
    return device_number(folder) == mounted and _is_unmounted(folder, syscalls.FORCE | syscalls.DETACH)


def _is_unmounted(folder: str, flags: int = 0) -> bool:
    try:
        syscalls.unmount(folder, flags)
    except OSError:
        return False
    return True
