"""Registry of a user's warm processes: a folder that nobody else can enter.

warm-<name>.lock    locked (fcntl) by the process while it takes jobs; holds its `Announcement` once it does
warm-<name>.sock    where it listens
warm-<name>.log     what it has to say
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Mapping

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.start.warm.key import PROTOCOL, Announcement, Head
from robust_run.version import __version__

#: Names the folder outright, in place of the usual ones.
VARIABLE = "ROBUST_WARM_FOLDER"

#: Most bytes of a Unix socket's path that the kernel takes, without the final NUL.
SOCKET_PATH_BYTES = 107

_FLOCK = "hhqqi4x"


def folders(env: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """Return the folders to look in, the one to start warm processes in first."""
    if chosen := env.get(VARIABLE):
        return (os.path.abspath(chosen),)
    runtime = env.get("XDG_RUNTIME_DIR")
    last = f"/tmp/robust-run-{uid}"  # noqa: S108 - used only if it is ours and closed to others
    return (os.path.join(runtime, "robust-run"), last) if runtime and os.path.isabs(runtime) else (last,)


def obstacle(folder: str, uid: int) -> str:
    """Return why a folder cannot be trusted: empty if it is a folder of ours that nobody else can enter."""
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "it is no folder"
    if status.st_uid != uid:
        return f"it belongs to user {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    return f"its mode is {mode:04o}, not 0700" if mode != 0o700 else ""


def make(env: Mapping[str, str], uid: int) -> str:
    """Return the folder to start warm processes in, made if needed. Raises UserError."""
    trouble = ""
    for folder in folders(env, uid):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            trouble = trouble or f"it cannot be made: {error.strerror}"
            continue
        if reason := obstacle(folder, uid):
            raise UserError(f"{folder} cannot hold the socket of a warm process: {reason}; remove it or set {VARIABLE}")
        return folder
    raise UserError(f"no folder for the socket of a warm process ({trouble}); set {VARIABLE} to one that can be made")


def path_of(folder: str, name: str, ending: str) -> str:
    """Return the path of one of the three files."""
    return os.path.join(folder, f"warm-{name}.{ending}")


def holder(path: str) -> int:
    """Return the pid that holds the lock of a file: 0 if nobody does, -1 if a process that has no pid here."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else pid or -1


def lock(path: str) -> int | None:
    """Open and lock a file for as long as this process lives; None if another has it. Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # the one before us removed it between our open and our lock


class WarmProcessFound(msgspec.Struct, frozen=True, kw_only=True):
    """A warm process that lives."""

    folder: str
    name: str
    pid: int
    version: str
    announcement: Announcement | None
    """None: of another version, which is not to be talked to."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has no number here, and nothing can be sent to it: it is of another container, or of the machine around."""
        return self.pid <= 0


def find(env: Mapping[str, str], uid: int) -> tuple[list[WarmProcessFound], list[str]]:
    """Return the warm processes that take jobs, oldest first, and the folders not looked into with the reason."""
    found: list[WarmProcessFound] = []
    distrusted: list[str] = []
    for folder in folders(env, uid):
        try:
            entries = os.listdir(folder)
            reason = obstacle(folder, uid)
        except OSError:
            continue
        names = [entry[5:-5] for entry in entries if entry.startswith("warm-") and entry.endswith(".lock")]
        if reason and names:
            distrusted.append(f"{folder} is not looked into for warm processes: {reason}")
        elif names:
            found += [each for name in names if (each := _look_at(folder, name)) is not None]
    found.sort(key=lambda each: (each.announcement.started_unix_s if each.announcement else 0.0, each.pid))
    return found, distrusted


def _look_at(folder: str, name: str) -> WarmProcessFound | None:
    path = path_of(folder, name, "lock")
    pid = holder(path)
    if pid == 0:
        return None  # it was killed, and left its files
    try:
        with open(path, "rb") as file:
            data = file.read()
        head = msgspec.json.decode(data, type=Head)
        ours = (head.protocol, head.version) == (PROTOCOL, __version__)
        announcement = msgspec.json.decode(data, type=Announcement) if ours else None
    except (OSError, msgspec.MsgspecError):
        return None  # it still imports
    return WarmProcessFound(folder=folder, name=name, pid=pid, version=head.version, announcement=announcement)
