"""Goes into the namespaces that a holder made, and becomes a program there.

Run as a file by the launcher's own interpreter, `python -I -S enter.py MOUNT USER FOLDER PROGRAM ...`: nothing but ctypes and os,
all imported before the old root is out of sight. The process stays the same: its pid, its group, its parent, what its parent
arranged for it. `USER` is "-" where there is no user namespace.
"""

import ctypes
import os
import sys
import warnings  # noqa: F401 - os.execvp imports it when it is called, and then it is too late

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
_GET_DEATH_SIGNAL, _SET_DEATH_SIGNAL = 2, 1


def main(argv: list[str]) -> int:
    """Enter and become the program. Returns only where that fails, with the exit code that shells use for it."""
    mount, user, folder, *program = argv
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid, parent = os.getuid(), os.getgid(), os.getppid()
    death_signal = ctypes.c_int(0)
    libc.prctl(_GET_DEATH_SIGNAL, ctypes.byref(death_signal), 0, 0, 0)
    # All opened first: from within the user namespace, processes outside of it may not be looked at.
    places = [(path, kind) for path, kind in ((user, NEW_USER), (mount, NEW_MOUNTS)) if path != "-"]
    opened = [(os.open(path, os.O_RDONLY | os.O_CLOEXEC), kind) for path, kind in places]
    for descriptor, kind in opened:
        _enter(libc, descriptor, kind)
    if user != "-":
        _be_oneself(libc, uid, gid)
    if death_signal.value:  # entering may have cleared it
        libc.prctl(_SET_DEATH_SIGNAL, death_signal.value, 0, 0, 0)
        if os.getppid() != parent:
            return 137
    try:
        os.chdir(folder)
        os.execvp(program[0], program)  # noqa: S606 - becoming this program is what we are for
    except OSError as error:
        what = folder if error.filename == folder else program[0]
        reason = f"{what}: {error.strerror} inside the image"
        print(f"robust-run: {reason}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    return 126


def _enter(libc: ctypes.CDLL, descriptor: int, kind: int) -> None:
    if libc.setns(descriptor, kind):
        reason = os.strerror(ctypes.get_errno())
        print(f"robust-run: the image cannot be entered: {reason}", file=sys.stderr)
        os._exit(126)
    os.close(descriptor)


def _be_oneself(libc: ctypes.CDLL, uid: int, gid: int) -> None:
    """Be the user one was, and not root, by one more user namespace; where that is refused, stay root of the first."""
    if libc.unshare(NEW_USER):
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} 0 1"), ("gid_map", f"{gid} 0 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)  # open() would look for a codec
        os.write(descriptor, text.encode())
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
