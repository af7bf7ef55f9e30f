"""The newest checkpoint in a local folder, found in a moment: for the launcher, before a worker starts.

It imports next to nothing, and believes a manifest whose digest is right, if the parts that it names in this folder are there, as
long as they should be: other targets, and what is in the parts, are left to who loads it. The order is that of
`retention.newest`.
"""

from __future__ import annotations

import os
from binascii import a2b_base64
from collections.abc import Collection
from typing import TypeVar

import msgspec

#: No manifest is larger (see `manifest.MANIFEST_BYTES`).
WRITTEN_BY = "code version"
"""The fact that says so."""
_LIMIT_BYTES = 257 << 20
_HEAD_BYTES = 128


class _File(msgspec.Struct, frozen=True):
    """What matters of a logical file: how long its part is."""

    size_bytes: int
    unit_bytes: int
    first_target: int = 0
    stored: str = ""


class _Brief(msgspec.Struct, frozen=True):
    """What tells the age of a checkpoint; all other fields of a manifest are skipped."""

    version: int
    created_s: float
    step: int | None = None
    facts: dict[str, str] = {}


class _Parts(msgspec.Struct, frozen=True):
    """What tells its parts: looked at for those only that may be the newest."""

    uuid: str
    targets: tuple[str, ...]
    files: tuple[_File, ...]


_Asked = TypeVar("_Asked", _Brief, _Parts)


def newest_path(root: str, avoid: Collection[str] = ()) -> str | None:
    """Return the path of the newest checkpoint in a folder; None if there is none, or no such folder. Never raises.

    `avoid`: what `written_by` returns for code that is not trusted any more. What that wrote counts if there is nothing else.
    """
    found = []
    try:
        with os.scandir(root) as entries:
            names = [(entry.name, not entry.is_symlink()) for entry in entries if entry.is_dir()]
    except OSError:
        return None
    for name, is_own in names:
        brief = _read(os.path.join(root, name), _Brief)
        if brief is not None:
            step = -1 if brief.step is None else brief.step
            is_trusted = brief.facts.get(WRITTEN_BY, "") not in avoid
            found.append((is_trusted, step >= 0, step, brief.created_s, is_own, name))
    for *_, name in sorted(found, reverse=True):
        folder = os.path.join(root, name)
        if _has_parts(folder):
            return folder
    return None


def age_of(path: str) -> tuple[float, int | None] | None:
    """Return when a checkpoint was written (seconds since the epoch), and its step; None if it is none. Never raises."""
    brief = _read(path, _Brief)
    return None if brief is None else (brief.created_s, brief.step)


def saved(root: str) -> list[tuple[float, int | None]]:
    """Return when each checkpoint in a folder was made (seconds since the epoch) and its step. Never raises."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    briefs = (_read(os.path.join(root, name), _Brief) for name in names)
    return [(brief.created_s, brief.step) for brief in briefs if brief is not None]


def written_by(job: str, version: str) -> str:
    """Return how a checkpoint says which version of which job's code wrote it; empty where nobody knows."""
    text = f"{job} {version}"[:200]
    return text if version and text.isprintable() else ""


def _has_parts(folder: str) -> bool:
    """Whether the parts of a checkpoint on its first target are there, as long as they should be."""
    asked = _read(folder, _Parts)
    if asked is None or not asked.uuid.isalnum():
        return False
    try:
        for index, file in enumerate(asked.files):
            length = _part_bytes(file, len(asked.targets))
            path = os.path.join(folder, f"parts-{asked.uuid}", f"{index:05d}-0.part")
            if length and os.stat(path).st_size != length:
                return False
    except (OSError, ValueError, ArithmeticError):
        return False
    return True


def _part_bytes(file: _File, targets: int) -> int:
    """Return what `FileLayout.part_bytes` returns for the first target, without what it imports."""
    units = -(-file.size_bytes // file.unit_bytes)
    mine = range(-file.first_target % targets, units, targets)
    if not mine:
        return 0
    if file.stored:  # four bytes per unit, little-endian
        lengths = a2b_base64(file.stored)
        if len(lengths) != 4 * units:
            raise ValueError("as many lengths as units are needed")
        return sum(int.from_bytes(lengths[4 * unit : 4 * unit + 4], "little") for unit in mine)
    return (len(mine) - 1) * file.unit_bytes + min(file.unit_bytes, file.size_bytes - mine[-1] * file.unit_bytes)


def _read(folder: str, kind: type[_Asked]) -> _Asked | None:
    """Return what a manifest says of what is asked; None if there is none, or it is damaged or of a version to come."""
    try:
        with open(os.path.join(folder, "MANIFEST"), "rb") as file:
            head = file.readline(_HEAD_BYTES).split()
            if len(head) != 4 or head[:2] != [b"rrck", b"1"] or not head[3].isdigit() or int(head[3]) > _LIMIT_BYTES:
                return None
            body = file.read(int(head[3]) + 1)
    except OSError:
        return None
    import xxhash

    if len(body) != int(head[3]) or xxhash.xxh3_128_hexdigest(body).encode() != head[2]:
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
