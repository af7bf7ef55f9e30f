"""The names of entries in a layer: their parts, and which of them are whiteouts. Pure.

A whiteout is an entry that stands for something else (OCI image specification, layer.md): `.wh.NAME` says that NAME of the layers
below is gone, `.wh..wh..opq` that everything of its folder is that they have put there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import IO, NamedTuple

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image.unpacking import ForwardReader, Packing, members_of, opened_tar, unpacked

_WHITEOUT, _OPAQUE, _OWN = ".wh.", ".wh..wh..opq", ".wh..wh."
#: Folders in each other. What removes a tree recurses, and a thousand are too deep for Python's own.
DEEPEST = 200
_LONGEST = 4096


class Whiteout(NamedTuple):
    """What of the layers below is gone."""

    folder: tuple[str, ...]
    """As the entry names it: links of the layers below may lead elsewhere."""
    name: str
    """In that folder; "": all that is in it."""


def parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of an entry's name; none for the root. Raises `ImageRefused` for one that leads out, or too deep."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in name or len(name) > _LONGEST:
        raise ImageRefused(f"an entry named {name[:80]!r} wants out of the image")
    if len(parts) > DEEPEST:
        raise ImageRefused(f"an entry {len(parts)} folders deep: at most {DEEPEST} are unpacked")
    return parts


def is_bookkeeping(parts: tuple[str, ...]) -> bool:
    """Whether an entry is one that AUFS keeps for itself (`.wh..wh.plnk`), or lies in one: no part of the image."""
    return any(part.startswith(_OWN) and part != _OPAQUE for part in parts)


def whiteout_of(parts: tuple[str, ...]) -> Whiteout | None:
    """Return what an entry says is gone; None where it is no whiteout. Raises `ImageRefused` for what is hidden nowhere."""
    if not parts or not parts[-1].startswith(_WHITEOUT):
        return None
    if parts[-1] == _OPAQUE:
        return Whiteout(parts[:-1], "")
    hidden = parts[-1][len(_WHITEOUT) :]
    if hidden in ("", ".", "..") or hidden.startswith(_WHITEOUT):
        raise ImageRefused(f"a whiteout named {parts[-1][:80]!r} wants out of the image")
    return Whiteout(parts[:-1], hidden)


@dataclass(frozen=True)
class LayerLimits:
    """What all layers of an image together may come to."""

    bytes: int = 1 << 40
    entries: int = 10_000_000
    whiteouts: int = 1_000_000
    """Of one layer: they are in memory together."""


# --- Which whiteouts a layer has: found by reading it once before it is applied.
#
# They concern the layers below and nothing of their own layer, wherever in it they stand (OCI image specification, layer.md): so
# they are carried out first, on what the layers below have made, and the entries come after all of them.


def whiteouts_in(
    file: IO[bytes],
    packing: Packing,
    sha256: str,
    size_bytes: int,
    limits: LayerLimits,
    stopping: threading.Event | None = None,
) -> list[Whiteout]:
    """Return the whiteouts of a layer, in its order. Its bytes are not verified: who applies it sees that it has these.

    `stopping`: the caller does not want to know any more. Raises `ImageRefused`.
    """

    def go_on(_count: int) -> None:
        if stopping is not None and stopping.is_set():
            raise ImageRefused(f"layer {sha256[:12]}: it was not read to its end")

    found: list[Whiteout] = []
    entries = total_bytes = 0
    reader = ForwardReader(unpacked(file, packing, size_bytes, go_on, hashed=False))
    with opened_tar(reader, sha256) as tar:
        for member in members_of(tar):
            entries, total_bytes = entries + 1, total_bytes + member.size
            if entries > limits.entries or total_bytes > limits.bytes:
                raise ImageRefused(
                    f"layer {sha256[:12]}: more than {limits.entries} entries or {limits.bytes} bytes; at most that many"
                    " are unpacked"
                )
            parts = parts_of(member.name)
            hidden = None if is_bookkeeping(parts) else whiteout_of(parts)
            if hidden is not None:
                found.append(hidden)
                if len(found) > limits.whiteouts:
                    raise ImageRefused(
                        f"layer {sha256[:12]}: more than {limits.whiteouts} whiteouts; that many are not read"
                    )
    return found
