"""Marks on a node's own disk: which run of a job it had a part in last. They outlive a power loss, and tell a return from a
first start.

`/var/tmp/robust-run-UID/rendezvous/HOST/KEY.AGENT.json`, or below $XDG_STATE_HOME/robust-run where that is set. An agent writes
one when it has joined and removes it when its job is over. What others may have planted there is not read.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError
from robust_run.launcher.model.world import shown

SCHEMA = 1
MOST_MARK_BYTES = 64 << 10
MOST_MARKS = 10_000
#: A mark that nothing has changed for so long is of a job that nobody comes back to.
FORGOTTEN_S = 90 * 86400.0
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{16})\.json")


class RendezvousMark(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's part in one run."""

    schema: int = SCHEMA
    key: str
    """Of the job, see `JobIdentity.key`."""
    agent: str
    """Id of the agent: 16 hexadecimal digits."""
    run_id: str
    log_dir: str = ""
    """Where the run directory is; empty: no logs are kept."""
    addresses: tuple[str, ...] = ()
    """HOST:PORT where the controller was, and where those are that would follow it."""


def marks_folder(env: Mapping[str, str], host: str) -> str:
    """Return where this node keeps its marks. The host's name is in it: a home folder may be shared."""
    base = env.get("XDG_STATE_HOME", "")
    root = os.path.join(base, "robust-run") if os.path.isabs(base) else f"/var/tmp/robust-run-{os.geteuid()}"  # noqa: S108
    return os.path.join(root, "rendezvous", re.sub(r"[^A-Za-z0-9._-]", "_", host).lstrip(".") or "host")


def write_mark(folder: str, mark: RendezvousMark) -> None:
    """Write or replace an agent's mark, durably. Raises PlatformError."""
    path = _path(folder, mark)
    try:
        os.makedirs(os.path.dirname(os.path.dirname(os.path.dirname(folder))), exist_ok=True)
        _make_own(folder)
        data = msgspec.json.encode(mark)
        write_file(path, data, draft=f"{path}.{os.urandom(8).hex()}", mode=0o600, durable=True)
    except OSError as error:
        raise PlatformError(
            f"cannot note in {shown(folder)} that this node has a part in run {mark.run_id}: {error.strerror}; "
            "should it lose power, it will not know"
        ) from error


def read_marks(folder: str, key: str, log_dir: str) -> list[RendezvousMark]:
    """Return the marks of a job, the newest last. One that is damaged, of a newer version, or not ours is none."""
    try:
        if not _is_own(folder):
            return []
        names = sorted(os.listdir(folder))[:MOST_MARKS]
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(folder, name)
        match = _NAME.fullmatch(name)
        if match is None or match[1] != key:
            _forget_old(path, match is not None)
            continue
        with suppress(OSError, msgspec.MsgspecError):
            mark, written_ns = _read(path)
            is_this = (mark.key, mark.agent, mark.log_dir) == (key, match[2], log_dir)
            if mark.schema <= SCHEMA and is_this:
                found.append((written_ns, mark))
    return [mark for _, mark in sorted(found, key=lambda each: each[0])]


def remove_mark(folder: str, mark: RendezvousMark) -> None:
    """Remove an agent's mark; that there is none is no error."""
    with suppress(OSError):
        os.unlink(_path(folder, mark))


def _path(folder: str, mark: RendezvousMark) -> str:
    return os.path.join(folder, f"{mark.key}.{mark.agent}.json")


def _levels(folder: str) -> tuple[str, str, str]:
    """Return the folders that must be ours: that of the host, of all marks, and of robust-run."""
    marks = os.path.dirname(folder)
    return os.path.dirname(marks), marks, folder


def _make_own(folder: str) -> None:
    """Make the folders that are missing. Raises OSError, also for one that somebody else made or can write."""
    for level in _levels(folder):
        with suppress(FileExistsError):
            os.mkdir(level, 0o700)
    if not _is_own(folder):
        raise PermissionError(1, "others made it, or can write to it")


def _is_own(folder: str) -> bool:
    """Whether nothing in the folder can be another user's. The uppermost level may be older, and its group's too."""
    for depth, level in enumerate(_levels(folder)):
        status = os.lstat(level)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or (depth and status.st_mode & 0o022):
            return False
    return True


def _read(path: str) -> tuple[RendezvousMark, int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > MOST_MARK_BYTES:
            raise OSError("no mark of ours")
        return json_decoder(RendezvousMark).decode(file.read(MOST_MARK_BYTES)), status.st_mtime_ns


def _forget_old(path: str, is_mark: bool) -> None:
    """Remove the mark of another job that is too old to matter; drafts of writers that were killed go sooner."""
    with suppress(OSError):
        age_s = time.time() - os.lstat(path).st_mtime
        if age_s > (FORGOTTEN_S if is_mark else 86400.0):
            os.unlink(path)
