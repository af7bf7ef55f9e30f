"""The listing in an image: every file, folder, link and removed name. Pure.

It says nothing that is believed before its sha256 is that in the manifest; and then it is still held against the limits.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Sequence

import msgspec

from robust_run.decoders import json_decoder
from robust_run.snapshot.errors import SnapshotRefused
from robust_run.snapshot.rules.types import Item, SnapshotManifest
from robust_run.store import paths

NAME = "listing.json"
LARGEST_BYTES = 1 << 30
MOST_ITEMS = 2_000_000
_DIGEST = re.compile(r"[0-9a-f]{32}")
_DECODER = json_decoder(list[Item])


def encode(items: Sequence[Item]) -> bytes:
    """Return the listing's bytes: one line per item, for people with `grep`."""
    return b"[" + b",\n".join(msgspec.json.encode(item) for item in items) + b"]\n"


def decode(data: bytes, manifest: SnapshotManifest) -> list[Item]:
    """Return the items. Raises `SnapshotRefused` for all that can be wrong with them; never anything else."""
    digest = hashlib.sha256(data).hexdigest()
    if digest != manifest.listing_sha256:
        raise SnapshotRefused(f"{NAME}: its sha256 is {digest}, the manifest says {manifest.listing_sha256}")
    if data.count(b"\n") > MOST_ITEMS + 1:
        raise SnapshotRefused(f"{NAME}: it has more than {MOST_ITEMS} lines")
    try:
        items = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotRefused(f"{NAME}: {str(error)[:200]}") from error
    check(items, len(manifest.roots))
    if len(items) != manifest.items:
        raise SnapshotRefused(f"{NAME}: it has {len(items)} items, the manifest says {manifest.items}")
    return items


def removed(data: bytes, manifest: SnapshotManifest) -> list[Item]:
    """Return the removed names of a listing that was verified before, without decoding the rest of it.

    Raises `SnapshotRefused` for what cannot be.
    """
    try:
        lines = [line.strip(b"[,]") for line in data.split(b"\n") if b'"w"' in line]
        items = [json_decoder(Item).decode(b"[%b]" % line) for line in lines]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotRefused(f"{NAME}: {str(error)[:200]}") from error
    found = [item for item in items if item.kind == "w"]
    check(found, len(manifest.roots))
    return found


def check(items: Sequence[Item], roots: int) -> None:
    """Raise `SnapshotRefused` for the first item that cannot be: out of its root, twice, below something that is no folder.

    A name may be removed and there again: a folder that replaces what was there.
    """
    kinds: dict[tuple[int, str], str] = {}
    removed: set[tuple[int, str]] = set()
    for item in items:
        place = (item.root, item.path)
        reason = _what_is_wrong(item, roots)
        if reason is None and place in (removed if item.kind == "w" else kinds):
            reason = "is there twice"
        if reason is not None:
            raise SnapshotRefused(f"{NAME}: {item.path[:200]!r} {reason}")
        if item.kind == "w":
            removed.add(place)
        else:
            kinds[place] = item.kind
    for root, path in kinds:
        above = posixpath.dirname(path)
        if above and kinds.get((root, above)) != "d":
            raise SnapshotRefused(f"{NAME}: {path[:200]!r} is not in a folder that is listed")


def _what_is_wrong(item: Item, roots: int) -> str | None:
    if not 0 <= item.root < roots:
        return f"is of root {item.root}, and there are {roots}"
    if not paths.is_clean(item.path):
        return "is no path that stays in its root"
    if not 0 <= item.mode <= 0o777:
        return f"has mode {item.mode:o}"
    if not 0 <= item.size_bytes <= 1 << 50:
        return f"has {item.size_bytes} bytes"
    if item.kind == "f" and not _DIGEST.fullmatch(item.content):
        return "has no digest"
    if item.kind == "l" and not (0 < len(item.content.encode("utf-8", "replace")) <= 4095 and "\0" not in item.content):
        return "is a link to nothing"
    return None
