"""The few system calls that snapshots need and Python has not: namespaces, mounts, overlays.

All paths of an overlay are given as /proc/self/fd/N: no name can be mistaken for an option, and no link be changed meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from robust_run.snapshot.errors import RestoreRefused

_NEW_MOUNTS, _NEW_USER, _NEW_PROCESSES = 0x00020000, 0x10000000, 0x20000000
_RECURSIVE_PRIVATE = 0x4000 | 0x40000
_READ_ONLY = 1
_NO_SET_USER, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_DETACH, _NO_FOLLOW = 2, 8
_DIE_WITH_PARENT, _ADOPT = 1, 36
_AMBIENT, _RAISE, _SYS_ADMIN, _CAPABILITY_VERSION = 47, 2, 21, 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def enter_private_namespace() -> bool:
    """Give this process (as root: this thread) a mount namespace of its own; without root, in a user namespace of its own.

    Returns whether it is a user namespace. User and group keep their numbers. Without root the process must have one thread.
    Raises `RestoreRefused` where the kernel does not let us.
    """
    user, group = os.geteuid(), os.getegid()
    is_nested = user != 0 or _libc.unshare(_NEW_MOUNTS) != 0  # root of a container may lack the right, too
    if is_nested and _libc.unshare(_NEW_MOUNTS | _NEW_USER):
        raise _refused("no private mount namespace", "user namespaces may be forbidden here")
    try:
        if is_nested:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as error:
        raise RestoreRefused(f"no user namespace: {error.strerror}") from error
    if _libc.mount(None, b"/", None, _RECURSIVE_PRIVATE, None):
        raise _refused("the mounts cannot be made private", "see dmesg")
    return is_nested


def number_processes_anew() -> bool:
    """Have the next child be the first of a process namespace; the kernel ends all in it with that one. False: not allowed."""
    return not _libc.unshare(_NEW_PROCESSES)


def mount_own_proc() -> bool:
    """Show this process and its children the /proc of their process namespace. False: that is not allowed."""
    if _libc.unshare(_NEW_MOUNTS) or _libc.mount(None, b"/", None, _RECURSIVE_PRIVATE, None):
        return False
    return not _libc.mount(b"proc", b"/proc", b"proc", _NO_SET_USER | _NO_DEVICES | _NO_PROGRAMS, None)


def mount_overlay(
    target: str, layers: Sequence[str], *, upper: str | None = None, work: str | None = None, userns: bool
) -> None:
    """Mount an overlay at a folder: the first layer is the uppermost; with an upper and a work folder it can be written.

    Raises `RestoreRefused`.
    """
    descriptors: list[int] = []
    try:
        numbers = []
        for path in (target, *layers, *([upper, work] if upper and work else [])):
            descriptors.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            numbers.append(f"/proc/self/fd/{descriptors[-1]}")
        count = len(layers)
        options = [f"lowerdir={':'.join(numbers[1 : 1 + count])}"]
        if upper and work:
            options += [f"upperdir={numbers[1 + count]}", f"workdir={numbers[2 + count]}"]
        options += ["userxattr"] if userns else ["redirect_dir=off", "metacopy=off", "index=off"]
        flags = 0 if upper else _READ_ONLY
        if _libc.mount(b"robust-snapshot", numbers[0].encode(), b"overlay", flags, ",".join(options).encode()):
            raise _refused(f"{target}: no overlay can be mounted there", "its file system may not allow it")
    except OSError as error:
        raise RestoreRefused(f"{target}: no overlay can be mounted there: {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def unmount(target: str) -> bool:
    """Take away what is mounted uppermost on a folder, at once. False: nothing is, or it may not be."""
    return not _libc.umount2(os.fsencode(target), _DETACH | _NO_FOLLOW)


def mounts_below(folder: str, table: str = "/proc/thread-self/mountinfo") -> list[str]:
    """Return the mount points below a folder, itself left out."""
    found = []
    with open(table, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            point = _unescaped(line.split(" ")[4])
            if point.startswith(folder.rstrip("/") + "/"):
                found.append(point)
    return found


def die_with_parent(signal_number: int = 9) -> None:
    """Have the kernel send this process a signal (SIGKILL) when the thread that started it ends."""
    _libc.prctl(_DIE_WITH_PARENT, signal_number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _libc.prctl(_ADOPT, 1, 0, 0, 0)


def keep_right_to_mount() -> None:
    """Have programs that this process executes keep the right to mount in its user namespace, whatever its user."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, sets):
        return
    sets[2] |= 1 << _SYS_ADMIN  # the inheritable set, without which it cannot be ambient
    if not _libc.capset(header, sets):
        _libc.prctl(_AMBIENT, _RAISE, _SYS_ADMIN, 0, 0)


@contextmanager
def no_umask() -> Iterator[None]:
    """Make files with exactly the mode that is asked for. The mask belongs to the process: use it in one of one thread."""
    old = os.umask(0)
    try:
        yield
    finally:
        os.umask(old)


def make_whiteout(path: str) -> bool:
    """Make what hides a name of the layers below. False: this kernel does not let us (before 5.8 only root could)."""
    try:
        os.mknod(path, stat.S_IFCHR, 0)
    except OSError:
        return False
    return True


def is_whiteout(status: os.stat_result) -> bool:
    """Whether this is what an overlay writes for a name that was removed."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _refused(what: str, advice: str) -> RestoreRefused:
    return RestoreRefused(f"{what}: {os.strerror(ctypes.get_errno())}: {advice}")
