"""The files of a lease in a store: claims, one per term, and the heartbeat of each (see `rules.lease`)."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from robust_run.decoders import json_decoder
from robust_run.snapshot import catalog
from robust_run.snapshot.rules import lease
from robust_run.snapshot.rules.lease import BuilderHeartbeat, StoreSight
from robust_run.store.errors import AlreadyExists, NotFound, TooLarge
from robust_run.store.types import Store

PROGRESS_CHARACTERS = 500
_BEAT_BYTES = 64 << 10


def look(store: Store, key: str, from_term: int = 1) -> StoreSight:
    """Return what the store says of a key now. Raises `StoreError`.

    The manifest is asked after last: a builder publishes it before its heartbeat says "done", so that whoever reads "done" finds
    it, also when it came between two of these readings. In the other order such a node would build the key again.
    """
    term = from_term - 1
    while term < lease.MOST_TERMS and _read(store, catalog.lease_path(key, term + 1, "claim"), None) is not None:
        term += 1
    beat: BuilderHeartbeat | None = None
    if term:
        with suppress(msgspec.MsgspecError, ValueError, TooLarge):  # no builder wrote that
            data = _read(store, catalog.lease_path(key, term, "beat"), _BEAT_BYTES)
            beat = _shown(json_decoder(BuilderHeartbeat).decode(data)) if data else None
    is_published = _read(store, catalog.manifest_path(key), None) is not None
    return StoreSight(is_published=is_published, term=term, beat=beat)


def _shown(beat: BuilderHeartbeat) -> BuilderHeartbeat:
    """Return a heartbeat whose texts can be shown: any user who can write to the store may have written them."""
    return msgspec.structs.replace(beat, builder=_plain(beat.builder), progress=_plain(beat.progress))


def _plain(text: str) -> str:
    return "".join(character for character in text[:PROGRESS_CHARACTERS] if character.isprintable())


def claim(store: Store, key: str, term: int, name: str) -> bool:
    """Claim a term. False: another builder has. Raises `StoreError`."""
    try:
        store.write_all(catalog.lease_path(key, term, "claim"), msgspec.json.encode({"builder": name}), replace=False)
    except AlreadyExists:
        return False
    return True


def _read(store: Store, path: str, limit_bytes: int | None) -> bytes | None:
    """Return a small file, or b"" for one that is only asked after; None: it is not there."""
    try:
        if limit_bytes is None:
            store.size_bytes(path)
            return b""
        return store.read_all(path, limit_bytes)
    except NotFound:
        return None
