"""Where the snapshots of a store lie: one folder per key, with `snapshot.json`, the image beside it, and `lease/`."""

from __future__ import annotations

import re
from contextlib import suppress

from robust_run.errors import UserError
from robust_run.snapshot.errors import SnapshotDamaged, SnapshotRefused
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.errors import NotFound, StoreError, TooLarge
from robust_run.store.types import Store

_KEY = re.compile(r"[0-9a-f]{64}")


def manifest_path(key: str) -> str:
    """Return the path of a key's manifest. Raises `SnapshotRefused` for what is no key."""
    return f"{checked_key(key)}/{manifests.NAME}"


def image_path(manifest: SnapshotManifest) -> str:
    """Return the path of a snapshot's image."""
    return f"{checked_key(manifest.key)}/{manifests.image_name(manifest)}"


def lease_path(key: str, term: int, kind: str) -> str:
    """Return the path of a file of a lease: `claim` or `beat`."""
    return f"{lease_folder(key)}/{kind}-{term:06}.json"


def lease_folder(key: str) -> str:
    """Return the folder of a key's lease."""
    return f"{checked_key(key)}/lease"


def checked_key(key: str) -> str:
    """Return a key as it is. Raises `SnapshotRefused` for anything that is none."""
    if not _KEY.fullmatch(key):
        raise SnapshotRefused(f"{key[:80]!r} is no key: 64 hex digits in lower case are needed")
    return key


def load(store: Store, key: str, token: str | None = None) -> SnapshotManifest | None:
    """Return the manifest of a key; None: there is no snapshot. Raises `SnapshotRefused`, `SnapshotDamaged`, `StoreError`."""
    path = manifest_path(key)
    try:
        data = store.read_all(path, manifests.LARGEST_BYTES)
    except NotFound:
        return None
    except TooLarge as error:
        raise SnapshotDamaged(f"{error}: it is no manifest; build it again") from error
    found = manifests.decode(data, token=token, name=f"{store.url.rstrip('/')}/{path}")
    if found.key != key:
        raise SnapshotDamaged(f"{store.url.rstrip('/')}/{path}: it is of key {found.key}; build it again")
    return found


def keys(store: Store, most: int = 100_000) -> list[str]:
    """Return the keys that have a folder in a store, published or not. Raises `StoreError`."""
    try:
        entries = store.list()
    except NotFound:
        return []
    return [entry.name for entry in entries if entry.is_folder and _KEY.fullmatch(entry.name)][:most]


def note_use(store: Store, key: str) -> None:
    """Note that a snapshot was used now, so that it is not pruned. A store that cannot be written stays as it is."""
    with suppress(StoreError):
        if store.writable:
            store.write_all(f"{checked_key(key)}/used", b"", durable=False)


def resolve(store: Store, text: str) -> str:
    """Return the key that begins with a text of at least 6 hex digits. Raises `UserError` if none does, or several."""
    if _KEY.fullmatch(text):
        return text
    if not re.fullmatch(r"[0-9a-f]{6,63}", text):
        raise UserError(f"{text[:80]!r} is no key: give at least the first 6 of its hex digits")
    found = [key for key in keys(store) if key.startswith(text)]
    if len(found) != 1:
        raise UserError(f"{text}: {len(found)} keys of {store.url} begin so; see `robust env list`")
    return found[0]


def remove(store: Store, key: str) -> None:
    """Remove a snapshot: the manifest first, so that no node begins to use what is going. Raises `StoreError`."""
    store.remove(manifest_path(key))
    store.remove(checked_key(key))
