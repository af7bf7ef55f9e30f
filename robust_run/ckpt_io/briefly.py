"""A manifest in brief: the age of its checkpoint, and whether its parts are there, without most of what reading one imports.

A manifest is believed if its digest is right; parts count as there if they are as long as they should be, on all targets of this
machine. What is in them shows when they are read.
"""

from __future__ import annotations

import os
from typing import BinaryIO, TypeVar

import msgspec

from robust_run.decoders import json_decoder

#: No manifest is larger (see `manifest.MANIFEST_BYTES`).
_LIMIT_BYTES = 257 << 20
HEAD_BYTES = 128
#: How the folder of parts is called, before its checkpoint's uuid.
PARTS = "parts-"
_SHOWN_CHARACTERS = 300
#: As `manifest.TARGETS` and `manifest.FILES`.
_TARGETS_MOST, _FILES_MOST = 1024, 100_000


class File(msgspec.Struct, frozen=True):
    """What matters of a logical file: how long its parts are."""

    size_bytes: int
    unit_bytes: int
    first_target: int = 0
    stored: str = ""


class Brief(msgspec.Struct, frozen=True):
    """What tells the age of a checkpoint; all other fields of a manifest are skipped."""

    version: int
    uuid: str
    created_s: float
    step: int | None = None
    facts: dict[str, str] = {}


class CheckpointParts(msgspec.Struct, frozen=True):
    """What tells its parts: looked at for those only that may be the newest."""

    uuid: str
    targets: tuple[str, ...]
    files: tuple[File, ...]


_Asked = TypeVar("_Asked", Brief, CheckpointParts)


def parts_fault(folder: str) -> str:
    """Return what is wrong with the parts of a checkpoint, as far as its targets are of this machine; empty: nothing is.

    A further target of which not even the folder of all its checkpoints is there cannot be asked: it is not mounted, or the
    program knows where it has gone. That shows when it is read.
    """
    asked = read(folder, CheckpointParts)
    if asked is None or len(asked.targets) > _TARGETS_MOST or len(asked.files) > _FILES_MOST:
        return "its manifest is damaged"
    try:
        for target, listed in enumerate(asked.targets):
            place = folder if target == 0 else os.path.normpath(listed)
            if target and (not listed.startswith("/") or not os.path.isdir(os.path.dirname(place))):
                continue
            if wrong := _wrong_part(place, asked, target):
                return wrong
    except (ValueError, ArithmeticError):
        return "its manifest is damaged"
    return ""


def _wrong_part(place: str, asked: CheckpointParts, target: int) -> str:
    """Return what is wrong with the first part on a target that is not as long as it should be."""
    parts = os.path.join(place, f"{PARTS}{asked.uuid}")
    for index, file in enumerate(asked.files):
        length = _part_bytes(file, target, len(asked.targets))
        if not length:
            continue
        name = f"{index:05d}-{target}.part"
        try:
            found = os.stat(os.path.join(parts, name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"part {name} is missing on {_shown(place)}"
        except OSError:
            return ""  # that target cannot be asked now
        if found != length:
            return f"part {name} on {_shown(place)} has {found} bytes instead of {length}"
    return ""


def _part_bytes(file: File, target: int, targets: int) -> int:
    """Return what `FileLayout.part_bytes` returns for a target, without what it imports."""
    units = -(-file.size_bytes // file.unit_bytes)
    mine = range((target - file.first_target) % targets, units, targets)
    if not mine:
        return 0
    if file.stored:  # four bytes per unit, little-endian
        from binascii import a2b_base64

        lengths = a2b_base64(file.stored)
        if len(lengths) != 4 * units:
            raise ValueError("as many lengths as units are needed")
        return sum(int.from_bytes(lengths[4 * unit : 4 * unit + 4], "little") for unit in mine)
    return (len(mine) - 1) * file.unit_bytes + min(file.unit_bytes, file.size_bytes - mine[-1] * file.unit_bytes)


def _shown(place: str) -> str:
    """Return a path for a message of one line: a manifest, or a file system, may say anything."""
    text = place if place.isprintable() else repr(place)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a named pipe in its place must not keep anybody waiting."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def read(folder: str, kind: type[_Asked]) -> _Asked | None:
    """Return what a manifest says of what is asked; None if there is none, or it is damaged or of a version to come."""
    try:
        with open(os.path.join(folder, "MANIFEST"), "rb", opener=open_without_waiting) as file:
            return decoded(file.readline(HEAD_BYTES), file, kind)
    except OSError:
        return None


def decoded(head: bytes, rest: BinaryIO, kind: type[_Asked]) -> _Asked | None:
    """Return the same of a manifest's first line, and the rest of its file."""
    words = head.split()
    if len(words) != 4 or words[:2] != [b"rrck", b"1"] or not words[3].isdigit() or int(words[3]) > _LIMIT_BYTES:
        return None
    body = rest.read(int(words[3]) + 1)
    import xxhash

    if len(body) != int(words[3]) or xxhash.xxh3_128_hexdigest(body).encode() != words[2]:
        return None
    try:
        return json_decoder(kind).decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
