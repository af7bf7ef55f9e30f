"""The newest checkpoint in a local folder, found in a moment: for the launcher, before a worker starts.

It imports next to nothing, and believes a manifest whose digest is right: to look into it is left to who loads it. The order is
that of `retention.newest`.
"""

from __future__ import annotations

import os

import msgspec

#: No manifest is larger (see `manifest.MANIFEST_BYTES`).
_LIMIT_BYTES = 257 << 20
_HEAD_BYTES = 128


class _Brief(msgspec.Struct, frozen=True):
    """What matters of a manifest here; all other fields are skipped."""

    version: int
    created_s: float
    step: int | None = None


def newest_path(root: str) -> str | None:
    """Return the path of the newest checkpoint in a folder; None if there is none, or no such folder. Never raises."""
    found = []
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return None
    for name in names:
        brief = _brief(os.path.join(root, name, "MANIFEST"))
        if brief is not None:
            step = -1 if brief.step is None else brief.step
            found.append((step >= 0, step, brief.created_s, name))
    return os.path.join(root, max(found)[3]) if found else None


def _brief(path: str) -> _Brief | None:
    """Return what a manifest says; None if there is none, or it is damaged or of a version to come."""
    try:
        with open(path, "rb") as file:
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
        return msgspec.json.decode(body, type=_Brief)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
