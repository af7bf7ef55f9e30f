"""Folders of runs in memory: what need not outlive a job, in /dev/shm, named for the pid of the guard that removes it.

The guard can so remove them without knowing which run they are of; what a guard that was killed has left, the next launcher does.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

_MEMORY = "/dev/shm"  # noqa: S108 - folders in it are made with mkdir, which follows no link, for us alone
_PREFIX = "robust-run-"
#: In a run's folder: where its checkpoints are mounted as files, in namespaces of the job alone where there can be such.
FILES = "checkpoints"
_UNMOUNT_S = 30.0


def memory_folder(run_id: str, guard: int) -> str | None:
    """Make the folder of a run, named for the guard that removes it; None: there is none in memory."""
    path = f"{_MEMORY}/{_PREFIX}{run_id}-{_owner(guard)}"
    try:
        os.mkdir(path, mode=0o700)
    except OSError:
        return None
    return path


def make_again(path: str) -> None:
    """Make the folder of a run if it is not there any more: systemd removes it with the user's last session (RemoveIPC).

    Raises OSError, also if it is somebody else's now.
    """
    try:
        os.mkdir(path, mode=0o700)
    except FileExistsError:
        if os.lstat(path).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "is another user's", path) from None


def temporary_run(guard: int) -> str:
    """Return a path for a run directory that nobody asked for; not made yet."""
    return os.path.join(_temporary_folder(), f"{_PREFIX}{os.urandom(4).hex()}-{_owner(guard)}")


def _temporary_folder() -> str:
    folder = os.environ.get("TMPDIR", "")
    return folder if os.path.isabs(folder) else "/tmp"  # noqa: S108 - folders in it are made with mkdir, for us alone


def remove_memory_folders(of_pid: int) -> None:
    """Remove what a guard's job left outside its run directory, for a run of any name.

    For a guard that does not know the run, when its agent and all processes below are gone. Only folders of this user count.
    """
    ending = f"-{_owner(of_pid)}"
    for parent in dict.fromkeys((_MEMORY, _temporary_folder())):
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        for name in names:
            if name.startswith(_PREFIX) and name.endswith(ending):
                _remove_ours(os.path.join(parent, name))


def remove_dead_memory() -> None:
    """Remove what launchers left in memory that were killed, guard and all; those that live keep theirs.

    For a launcher that has made no folder yet: one that is named for it is of a process that had its number before, as
    launchers of a container have that is started again.
    """
    namespace, _, _ = _owner(0).rpartition(".")
    try:
        names = os.listdir(_MEMORY)
    except OSError:
        return
    for name in names:
        head, _, pid = name.rpartition(".")
        ours = name.startswith(_PREFIX) and head.endswith(f"-{namespace}")
        if ours and pid.isdecimal() and (int(pid) == os.getpid() or not os.path.exists(f"/proc/{pid}")):
            _remove_ours(os.path.join(_MEMORY, name))


def joined_here() -> list[str]:
    """Return the runs that living launchers of this user and pid namespace have a part in.

    A launcher makes its folder in memory when it has been let in. One whose process is gone does not count, nor one of another
    container that shares the memory file system.
    """
    namespace, _, _ = _owner(0).rpartition(".")
    found = []
    for name in sorted(os.listdir(_MEMORY)) if os.path.isdir(_MEMORY) else ():
        head, _, pid = name.rpartition(".")
        run, dash, other = head.removeprefix(_PREFIX).rpartition("-")
        if name.startswith(_PREFIX) and dash and other == namespace and pid.isdecimal() and _is_ours(name, pid):
            found.append(run)
    return found


def _is_ours(name: str, pid: str) -> bool:
    try:
        owner = os.lstat(os.path.join(_MEMORY, name)).st_uid
    except OSError:
        return False
    return owner == os.geteuid() and os.path.exists(f"/proc/{pid}")


def _owner(pid: int) -> str:
    """Return a name of a process that no other has, not even in another container that shares the memory file system."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{namespace:x}.{pid}"


def _remove_ours(folder: str) -> None:
    try:
        status = os.lstat(folder)
    except OSError:
        return
    if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
        remove_tree(folder)


def unmount_files(point: str) -> bool:
    """Take away a mount of checkpoints that everybody sees, if there is one; nothing is asked of who serves it. Never raises.

    False: there still is one. Who removes folders must not look into it: it may hang, and its files are nobody's leftovers.
    """
    if not _is_mounted(point):
        return True
    import shutil
    import subprocess

    tool = shutil.which("fusermount3") or "fusermount3"
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run([tool, "-u", "-z", "--", point], capture_output=True, timeout=_UNMOUNT_S, check=False)
    return not _is_mounted(point)


def _is_mounted(point: str) -> bool:
    from robust_run.mounts.table import mounts

    place = f"{os.path.realpath(os.path.dirname(point))}/{FILES}"
    return any(each.point == place for each in mounts())


def remove_tree(path: str | None) -> None:
    """Remove a folder and what is in it, as far as that can be; one in which files are still mounted stays as it is."""
    import shutil

    if path:
        with suppress(OSError):
            if FILES in os.listdir(path) and not unmount_files(os.path.join(path, FILES)):
                return
        shutil.rmtree(path, ignore_errors=True)
