"""Save reports: what a worker of a job has saved, left for its launcher in the rank's own folder.

A folder of checkpoints that is empty when an attempt begins may be one where none was saved yet, or one that is not mounted any
more: it looks the same. So what commits a checkpoint leaves a note of the newest in the run directory, which is another file
system, and the launcher knows that there was one. Only what was committed under a name that counts is noted, and only on this
machine's own paths: the launcher looks nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.ckpt_io.seen import is_temporary

SCHEMA = 1
FILE = "saved.json"
_LIMIT_BYTES = 16384


class SaveNote(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that a rank has committed."""

    schema: int = SCHEMA
    uuid: str
    """Of its manifest."""
    name: str
    """Of its folder."""
    step: int | None = None
    created_s: float = 0.0
    """Seconds since the epoch."""
    roots: tuple[str, ...] = ()
    """What its folder lies in: as the program named it, and with links followed."""


def leave_note(url: str, uuid: str, step: int | None, created_s: float, env: Mapping[str, str] = os.environ) -> None:
    """Leave a note, where this is a worker of a job and the checkpoint lies on a path. Never raises."""
    with suppress(Exception):  # the checkpoint exists, and no note is worth an error in a user's program
        folder = _folder(env)
        root, name = os.path.split(url)
        if not folder or not url.startswith("/") or not name or is_temporary(name):
            return
        roots = tuple(dict.fromkeys((root, os.path.realpath(root))))
        note = SaveNote(uuid=uuid, name=name, step=step, created_s=created_s, roots=roots)
        draft = os.path.join(folder, f".{FILE}.{os.getpid()}")
        write_file(os.path.join(folder, FILE), msgspec.json.encode(note), draft=draft)


def _folder(env: Mapping[str, str]) -> str:
    """Return the folder of this rank in the run directory; empty: this is no worker of a job."""
    run, attempt, rank = (env.get(name, "") for name in ("ROBUST_RUN_DIR", "TORCHELASTIC_RESTART_COUNT", "RANK"))
    if not run or not attempt.isdecimal() or not rank.isdecimal():
        return ""
    return os.path.join(run, f"attempt_{attempt}", rank)


def read_note(folder: str) -> SaveNote | None:
    """Return the note that a rank has left in its folder; None: none that can be read. Never raises."""
    try:
        with open(os.path.join(folder, FILE), "rb", opener=_plain) as file:
            note = msgspec.json.decode(file.read(_LIMIT_BYTES), type=SaveNote)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    is_sound = note.schema == SCHEMA and note.uuid.isalnum() and len(note.uuid) <= 64 and note.name.isprintable()
    return note if is_sound and (note.step is None or 0 <= note.step < 1 << 62) else None


def _plain(path: str, flags: int) -> int:
    """Open a file; neither a link nor a named pipe in its place is followed or waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
