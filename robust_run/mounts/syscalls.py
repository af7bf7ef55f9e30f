"""The system calls about mounts and namespaces that Python does not have, as functions that raise OSError."""

from __future__ import annotations

import ctypes
import os
import signal

NEW_MOUNTS, NEW_USER, NEW_PROCESSES, OWN_FILES = 0x00020000, 0x10000000, 0x20000000, 0x00000400
READ_ONLY, NO_SETUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
_REMOUNT, _NO_ATIME, _NO_DIR_ATIME, _BIND, _RECURSIVE, _PRIVATE, _SLAVE, _REL_ATIME = (
    32, 1024, 2048, 4096, 16384, 1 << 18, 1 << 19, 1 << 21,
)  # fmt: skip
FORCE, DETACH, _NO_FOLLOW = 1, 2, 8
_SET_DEATH_SIGNAL, _ADOPT = 1, 36
_AMBIENT, _RAISE, _SYS_ADMIN, _CAPABILITY_VERSION = 47, 2, 21, 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """Give this process namespaces of its own. For a process with one thread; of a mount namespace and of files: this thread."""
    _check(_libc.unshare(flags), "namespaces")


def mount(kind: str, folder: str, *, source: str = "none", flags: int = 0, options: str = "") -> None:
    """Mount a file system of a kind."""
    words = os.fsencode(options) if options else None
    _check(_libc.mount(os.fsencode(source), os.fsencode(folder), kind.encode(), ctypes.c_ulong(flags), words), folder)


def follow_only() -> None:
    """Let no mount of ours be seen outside of this namespace; mounts and unmounts of the host still arrive, so none is pinned."""
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _SLAVE), None), "/")


def make_private() -> None:
    """Let no mount of ours be seen outside of this namespace, and none of the host's arrive in it."""
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None), "/")


def bind(source: str, destination: str) -> None:
    """Show a file or folder, with all that is mounted below it, at another place too."""
    flags = ctypes.c_ulong(_BIND | _RECURSIVE)
    _check(_libc.mount(os.fsencode(source), os.fsencode(destination), None, flags, None), destination)


def make_read_only(folder: str, more: int = 0) -> None:
    """Make a mount read-only, at this place only. What restricts it already is kept, as a user namespace demands.

    `more`: `NO_SETUID`, `NO_DEVICES`.
    """
    now = os.statvfs(folder).f_flag
    kept = more | now & (NO_SETUID | NO_DEVICES | NO_PROGRAMS)
    kept |= _NO_ATIME if now & os.ST_NOATIME else 0
    kept |= _NO_DIR_ATIME if now & os.ST_NODIRATIME else 0
    kept |= _REL_ATIME if now & os.ST_RELATIME else 0
    flags = ctypes.c_ulong(_REMOUNT | _BIND | READ_ONLY | kept)
    _check(_libc.mount(None, os.fsencode(folder), None, flags, None), folder)


def unmount(folder: str, flags: int = 0) -> None:
    """Take away what is mounted uppermost on a folder. `flags`: `FORCE`, `DETACH`."""
    _check(_libc.umount2(os.fsencode(folder), flags | _NO_FOLLOW), folder)


def detach(folder: str) -> None:
    """Unmount lazily: the folder is free at once, the mount ends when no process uses it any more."""
    unmount(folder, DETACH)


def become_root(folder: str) -> None:
    """Make a mount point the root of this mount namespace, and let go of the old root. The working directory is "/" then."""
    os.chdir(folder)
    _check(_libc.pivot_root(b".", b"."), folder)  # pivot_root(2): the old root lies on top of the new one ...
    _check(_libc.umount2(b".", DETACH), "the old root")  # ... and is taken away
    os.chdir("/")


def die_with_parent(parent: int | None = None, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends. `parent`: end now if that is gone."""
    _libc.prctl(_SET_DEATH_SIGNAL, signal_number, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + signal_number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _libc.prctl(_ADOPT, 1, 0, 0, 0)


def keep_right_to_mount() -> None:
    """Have programs that this process executes keep the right to mount in its user namespace, as any user."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, sets):
        return
    sets[2] |= 1 << _SYS_ADMIN  # the inheritable set, without which it cannot be ambient
    if not _libc.capset(header, sets):
        _libc.prctl(_AMBIENT, _RAISE, _SYS_ADMIN, 0, 0)
