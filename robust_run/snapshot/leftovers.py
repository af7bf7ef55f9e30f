"""What builds left in a store that have no snapshot: found and removed, without taking anything from a build that goes on.

A set-up that failed leaves its lease, because nodes that wait for it must read there why. Nobody knows when the last one has, so
time decides (`rules.expiry`): `robust env prune` removes what is old enough, and each build looks at its end for what others
left, by the store's own clock. Should a build begin in the moment between looking and removing, it loses nothing but its claim,
which it makes again before it publishes (`holding.Holder.is_ours`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.snapshot import catalog, lease_files
from robust_run.snapshot.errors import SnapshotRefused
from robust_run.snapshot.rules import expiry
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules.expiry import StoredFolder
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.types import Entry, Store

#: What a build may spend on what others left, at its end.
SWEEP_S, SWEPT_KEYS = 1.0, 200


def stored(store: Store) -> list[StoredFolder]:
    """Return what a store holds, for pruning; what cannot be read has no manifest. Raises `StoreError`."""
    times = _key_times(store)
    return [_folder(store, key, times.get(key)) for key in catalog.keys(store)]


def sweep(store: Store, key: str, clock: Clock) -> list[str]:
    """Remove what failed builds of other keys left, and return their keys. Called by who has just built `key`. Never raises.

    It takes a second at most, and in a store of many keys it looks at some, beginning behind its own.
    """
    give_up_at_s = clock.monotonic_s() + SWEEP_S
    gone: list[str] = []
    with suppress(StoreError, SnapshotRefused):
        now_unix_s = _touched(store.list(catalog.lease_folder(key)))  # our own heartbeat has just been written
        times = _key_times(store)
        names = sorted(catalog.keys(store))
        for name in [*(name for name in names if name > key), *(name for name in names if name < key)][:SWEPT_KEYS]:
            if clock.monotonic_s() > give_up_at_s:
                break
            entries = _entries(store, name)
            if any(entry.name == manifests.NAME for entry in entries):
                continue
            found = _unpublished(store, name, entries, times.get(name))
            if expiry.prune_plan([found], now_unix_s, unused_s=math.inf, abandoned_s=math.inf):
                catalog.remove(store, name)
                gone.append(name)
    return gone


def _key_times(store: Store) -> dict[str, float | None]:
    try:
        return {entry.name: entry.modified_s for entry in store.list() if entry.is_folder}
    except NotFound:
        return {}


def _entries(store: Store, path: str) -> list[Entry]:
    try:
        return store.list(path)
    except NotFound:
        return []  # another process removes, too


def _folder(store: Store, key: str, made_s: float | None) -> StoredFolder:
    """Return what a key's folder is. Raises `StoreError`."""
    entries = _entries(store, key)
    try:
        manifest = catalog.load(store, key)
    except SnapshotRefused:
        return msgspec.structs.replace(_unpublished(store, key, entries, made_s), given_up=False)
    if manifest is None:
        return _unpublished(store, key, entries, made_s)
    touched_unix_s = max([manifest.built_unix_s, *_times(entries)])
    size_bytes = sum(entry.size_bytes for entry in entries)
    return StoredFolder(
        key=key, built_unix_s=manifest.built_unix_s, touched_unix_s=touched_unix_s, size_bytes=size_bytes
    )


def _unpublished(store: Store, key: str, entries: list[Entry], made_s: float | None) -> StoredFolder:
    """Return what a folder without a manifest is. `made_s`: when it was made, as far as that is known."""
    lease = _entries(store, catalog.lease_folder(key))
    beat = lease_files.look(store, key).beat if lease else None
    made = [made_s] if made_s is not None else []
    return StoredFolder(
        key=key,
        built_unix_s=None,
        touched_unix_s=max([*made, *_times(entries), *_times(lease)], default=math.inf),
        size_bytes=sum(entry.size_bytes for entry in (*entries, *lease)),
        given_up=beat is not None and beat.state in ("failed", "left"),
    )


def _times(entries: Iterable[Entry]) -> list[float]:
    return [entry.modified_s for entry in entries if entry.modified_s is not None]


def _touched(entries: Iterable[Entry]) -> float:
    """Return when the newest was written; minus infinity, as which nothing is old, where the store does not say."""
    return max(_times(entries), default=-math.inf)
