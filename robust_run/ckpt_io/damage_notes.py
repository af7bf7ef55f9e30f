"""Damage reports: what a worker finds wrong with a checkpoint that it reads, left for its launcher in the rank's own folder.

The launcher cannot read checkpoints, and an exception may be caught, wrapped or lost with its rank. So the reader itself leaves a
note when a unit or a manifest is not what was saved, in a worker that was told where to start from (ROBUST_RESUME), and the
launcher has the next attempt start elsewhere. A target that does not answer is no damage, and neither is a checkpoint that is
not there: nothing is noted of those.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file

SCHEMA = 1
_PREFIX, _ENDING = "damaged-", ".json"
#: One process leaves no more notes, and of one rank no more are read.
_MOST = 8
_LIMIT_BYTES = 8192
_REASON_CHARACTERS = 500

_left: set[str] = set()
"""What this process has left notes of."""


class DamageNote(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that is not what was saved."""

    schema: int = SCHEMA
    uuid: str = ""
    """Of its manifest; empty: it is the manifest that is refused."""
    url: str
    """Path or URL of its folder, without credentials."""
    reason: str
    """What is wrong, as a clause."""


def leave_note(url: str, uuid: str, reason: str, env: Mapping[str, str] = os.environ) -> None:
    """Leave a note, where this is a worker that was told a checkpoint to start from. Never raises."""
    folder = _folder(env)
    name = f"{_PREFIX}{uuid or 'manifest'}{_ENDING}"
    if not folder or name in _left or len(_left) >= _MOST or not (uuid.isalnum() or not uuid):
        return
    _left.add(name)
    draft = os.path.join(folder, f".{name}.{os.getpid()}")
    with suppress(Exception):  # the error that is about to be raised says it, too
        note = DamageNote(uuid=uuid, url=url, reason=reason[:_REASON_CHARACTERS])
        write_file(os.path.join(folder, name), msgspec.json.encode(note), draft=draft)


def _folder(env: Mapping[str, str]) -> str:
    """Return the folder of this rank in the run directory; empty: this is no worker that was told where to start from."""
    run, attempt, rank = (env.get(name, "") for name in ("ROBUST_RUN_DIR", "TORCHELASTIC_RESTART_COUNT", "RANK"))
    if not env.get("ROBUST_RESUME") or not run or not attempt.isdecimal() or not rank.isdecimal():
        return ""
    return os.path.join(run, f"attempt_{attempt}", rank)


def read_notes(folder: str) -> list[DamageNote]:
    """Return the notes that a rank has left in its folder, as far as they can be read. Never raises."""
    notes = []
    with suppress(OSError):
        names = [name for name in sorted(os.listdir(folder)) if name.startswith(_PREFIX) and name.endswith(_ENDING)]
        for name in names[:_MOST]:
            with suppress(OSError, msgspec.MsgspecError), open(os.path.join(folder, name), "rb", opener=_plain) as file:
                note = msgspec.json.decode(file.read(_LIMIT_BYTES), type=DamageNote)
                if note.schema == SCHEMA:
                    notes.append(note)
    return notes


def _plain(path: str, flags: int) -> int:
    """Open a file; neither a link nor a named pipe in its place is followed or waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
