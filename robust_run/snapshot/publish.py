"""Putting a snapshot into a store: the image first, under the name of its content; then the manifest, which makes it a snapshot.

Whoever is killed in between leaves an image that nobody reads. Of two builders the first manifest stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from robust_run.snapshot import catalog, lazy
from robust_run.snapshot import manifest as manifests
from robust_run.snapshot.types import Manifest
from robust_run.store.errors import AlreadyExists, NotFound, StoreError
from robust_run.store.types import Store

_PIECE_BYTES = 8 << 20


def publish(
    store: Store,
    manifest: Manifest,
    image: str,
    *,
    blocks: bytes = b"",
    token: str | None = None,
    replace: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Write image and manifest. Returns the manifest that is in the store: another's, if that was there first.

    `blocks`: the image's block map, for nodes that mount it before it is there. `replace`: this one takes the place of what is
    there (`--refresh-setup`). Raises `StoreError`, `SnapshotRefused`.
    """
    data = manifests.encode(manifest, token)
    path = catalog.image_path(manifest)
    if replace or not _is_there(store, path, manifest.image_bytes):  # what is there may be damaged
        _upload(store, path, image, manifest.image_bytes, progress)
    if blocks:
        store.write_all(lazy.map_path(manifest), blocks)
    try:
        store.write_all(catalog.manifest_path(manifest.key), data, replace=replace)
    except AlreadyExists:
        there = catalog.load(store, manifest.key, token)
        if there is None:  # it was removed just now
            store.write_all(catalog.manifest_path(manifest.key), data)
        else:
            if there.image_sha256 != manifest.image_sha256:
                with suppress(StoreError):
                    store.remove(path)
                    store.remove(lazy.map_path(manifest))
            return there
    return manifests.decode(data, token=token)


def _is_there(store: Store, path: str, size_bytes: int) -> bool:
    try:
        return store.size_bytes(path) == size_bytes
    except NotFound:
        return False


def _upload(store: Store, path: str, image: str, size_bytes: int, progress: Callable[[int], None] | None) -> None:
    writer = store.create(path, size_bytes)
    try:
        with open(image, "rb", buffering=0) as file:
            at = 0
            while at < size_bytes:
                piece = file.read(min(_PIECE_BYTES, size_bytes - at))
                if not piece:
                    raise StoreError(store.url, path, f"{image} was cut short while it was written")
                writer.write_at(at, [memoryview(piece)])
                at += len(piece)
                if progress is not None:
                    progress(len(piece))
        writer.finish()
    except BaseException:
        writer.abort()
        raise
