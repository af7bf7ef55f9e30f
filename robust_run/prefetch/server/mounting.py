"""The mount of one FUSE file: made by mount(2) itself, so neither libfuse nor fusermount is needed, only the right to mount.

Root has it, and so has root of a user namespace with a mount namespace of its own. Mount in a private mount namespace: one that
others share keeps the mount for as long as anything that copied it lives.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from robust_run.prefetch.errors import MountRefused

_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4  # of mount(2)
_FORCE, _DETACH, _NO_FOLLOW = 1, 2, 8  # of umount2(2)
_libc = ctypes.CDLL(None, use_errno=True)


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
    flags = _READ_ONLY | _NO_SETUID | _NO_DEVICES
    if _libc.mount(b"robust-image", os.fsencode(folder), b"fuse.robust-image", flags, options.encode()):
        number = ctypes.get_errno()
        advice = "mounting needs root, or a user namespace (`unshare -Urm`)" if number == errno.EPERM else "see dmesg"
        raise MountRefused(f"{folder}: cannot mount there: {os.strerror(number)}: {advice}")
    mounted = device_number(folder)
    if mounted is None:
        raise MountRefused(f"{folder}: the mount is not in the table of mounts: is /proc that of another namespace?")
    return mounted


def unmount_if_idle(folder: str, mounted: int) -> bool:
    """Take our mount away if nobody uses it. Return whether it is gone. `mounted`: its device number."""
    if device_number(folder) != mounted:
        return True
    return not _libc.umount2(os.fsencode(folder), _NO_FOLLOW)


def abort(folder: str, mounted: int) -> bool:
    """Take our mount away, and have the kernel fail every read of it that waits and that comes.

    To close /dev/fuse is not enough: a process that was forked from the keeper may hold it too, and a reader whose request was
    taken by a dead server can then not even be killed. A mount of others on the same folder is left alone.
    False: it is not there, or in another mount namespace.
    """
    if device_number(folder) != mounted:
        return False
    return not _libc.umount2(os.fsencode(folder), _FORCE | _DETACH | _NO_FOLLOW)


def device_number(folder: str) -> int | None:
    """Return the device number of what is mounted on a folder, uppermost; None: nothing. Asks the kernel and no server."""
    place = folder.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    found = None
    with open("/proc/thread-self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in file:
            parts = line.split(" ")
            if parts[4] == place:
                major, _colon, minor = parts[2].partition(":")
                found = os.makedev(int(major), int(minor))
    return found
