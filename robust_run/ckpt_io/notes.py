"""Reports of workers to their launcher, as files in the rank's own folder of the run directory.

Damage: the launcher cannot read checkpoints, and an exception may be caught, wrapped or lost with its rank. So the reader itself
leaves a note when a unit or a manifest is not what was saved, in a worker that was told where to start from (ROBUST_RESUME), and
the launcher has the next attempt start elsewhere. A target that does not answer is no damage, and neither is a checkpoint that is
not there: nothing is noted of those.

Saves: a folder of checkpoints that is empty when an attempt begins may be one where none was saved yet, or one that is not
mounted any more: it looks the same. So what commits a checkpoint leaves a note of the newest in the run directory, which is
another file system, and the launcher knows that there was one. Only what was committed under a name that counts is noted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.ckpt_io.seen import is_temporary, is_url
from robust_run.decoders import json_decoder

DAMAGE_SCHEMA = SAVE_SCHEMA = 1
SAVED = "saved.json"
_PREFIX, _ENDING = "damaged-", ".json"
#: One process leaves no more notes of damage, and of one rank no more are read.
_MOST = 8
_LIMIT_BYTES = 16384
_REASON_CHARACTERS = 500

_left: set[str] = set()
"""Of what damage this process has left notes."""


class DamageNote(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that is not what was saved."""

    schema: int = DAMAGE_SCHEMA
    uuid: str = ""
    """Of its manifest; empty: it is the manifest that is refused."""
    url: str
    """Path or URL of its folder, without credentials."""
    reason: str
    """What is wrong, as a clause."""


class SaveNote(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that a rank has committed."""

    schema: int = SAVE_SCHEMA
    uuid: str
    """Of its manifest."""
    name: str
    """Of its folder."""
    step: int | None = None
    created_s: float = 0.0
    """Seconds since the epoch."""
    roots: tuple[str, ...] = ()
    """What its folder lies in: as the program named it, and with links followed."""


def leave_damage(url: str, uuid: str, reason: str, env: Mapping[str, str] = os.environ) -> None:
    """Leave a note of damage, where this is a worker that was told a checkpoint to start from. Never raises."""
    folder = _folder(env) if env.get("ROBUST_RESUME") else ""
    name = f"{_PREFIX}{uuid or 'manifest'}{_ENDING}"
    if not folder or name in _left or len(_left) >= _MOST or not (uuid.isalnum() or not uuid):
        return
    _left.add(name)
    with suppress(Exception):  # the error that is about to be raised says it, too
        _write(folder, name, DamageNote(uuid=uuid, url=url, reason=reason[:_REASON_CHARACTERS]))


def leave_save(url: str, uuid: str, step: int | None, created_s: float, env: Mapping[str, str] = os.environ) -> None:
    """Leave a note of a save, where this is a worker of a job. Never raises."""
    with suppress(Exception):  # the checkpoint exists, and no note is worth an error in a user's program
        folder = _folder(env)
        if not folder:
            return
        if is_url(url):
            from robust_run.ckpt_io import address  # imported by whatever saves there

            root, name = address.split(url)
            roots: tuple[str, ...] = (root,)
        else:
            root, name = os.path.split(url)
            roots = tuple(dict.fromkeys((root, os.path.realpath(root))))
        if not (is_url(url) or url.startswith("/")) or not name or is_temporary(name):
            return
        _write(folder, SAVED, SaveNote(uuid=uuid, name=name, step=step, created_s=created_s, roots=roots))


def read_damage(folder: str) -> list[DamageNote]:
    """Return the notes of damage that a rank has left in its folder, as far as they can be read. Never raises."""
    notes = []
    with suppress(OSError):
        names = [name for name in sorted(os.listdir(folder)) if name.startswith(_PREFIX) and name.endswith(_ENDING)]
        for name in names[:_MOST]:
            with suppress(OSError, msgspec.MsgspecError):
                note = json_decoder(DamageNote).decode(_read(folder, name))
                if note.schema == DAMAGE_SCHEMA:
                    notes.append(note)
    return notes


def read_save(folder: str) -> SaveNote | None:
    """Return the note of a save that a rank has left in its folder; None: none that can be read. Never raises."""
    try:
        note = json_decoder(SaveNote).decode(_read(folder, SAVED))
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    is_sound = note.schema == SAVE_SCHEMA and note.uuid.isalnum() and len(note.uuid) <= 64 and note.name.isprintable()
    return note if is_sound and (note.step is None or 0 <= note.step < 1 << 62) else None


def _folder(env: Mapping[str, str]) -> str:
    """Return the folder of this rank in the run directory; empty: this is no worker of a job."""
    run, attempt, rank = (env.get(name, "") for name in ("ROBUST_RUN_DIR", "TORCHELASTIC_RESTART_COUNT", "RANK"))
    return os.path.join(run, f"attempt_{attempt}", rank) if run and attempt.isdecimal() and rank.isdecimal() else ""


def _write(folder: str, name: str, note: DamageNote | SaveNote) -> None:
    draft = os.path.join(folder, f".{name}.{os.getpid()}")
    write_file(os.path.join(folder, name), msgspec.json.encode(note), draft=draft)


def _read(folder: str, name: str) -> bytes:
    """Read a file; neither a link nor a named pipe in its place is followed or waited for."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(os.path.join(folder, name), flags), "rb") as file:
        return file.read(_LIMIT_BYTES)
