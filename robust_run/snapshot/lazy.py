"""Mounting a snapshot before it is here: its block map, and what a launch fetches first.

An image in a remote store is a lazy image like any other: a block server shows it, blocks come as they are read, and what a start
reads is recorded, so that later starts fetch that ahead. The block map is believed because the manifest, which may be signed, has
its digest; each block is held against the map.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from robust_run.snapshot import catalog
from robust_run.snapshot.errors import RestoreRefused, SnapshotRefused
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.types import Store, StoreOptions

if TYPE_CHECKING:
    from robust_run.prefetch.launch import Prepared
    from robust_run.prefetch.peers.types import PeerOptions

#: Smaller ones are brought as a whole: that takes no longer than a few reads that wait for each other.
LEAST_BYTES = 16 << 20


def make_map(image: str) -> bytes:
    """Return the bytes of an image's block map. Raises OSError, `BlockMapRefused`."""
    from robust_run.prefetch import blockmap

    return blockmap.encode(blockmap.make(image))


def digest_of(blocks: bytes) -> str:
    """Return what a manifest says of a block map."""
    return hashlib.sha256(blocks).hexdigest()


def map_path(manifest: SnapshotManifest) -> str:
    """Return the path of the block map in the store."""
    return f"{catalog.image_path(manifest)}.blocks.json"


def why_not(manifest: SnapshotManifest, *, remote: bool, cached: bool, least_bytes: int = LEAST_BYTES) -> str:
    """Return why a snapshot is brought as a whole instead; "": it can be mounted before it is here. Pure.

    `cached`: the whole image is on this node.
    """
    if cached:
        return "the image is here"
    if not remote:
        return "the store is of this machine"
    if not manifest.blocks_sha256:
        return "it has no block map"
    if manifest.image_bytes < least_bytes:
        return f"it has only {manifest.image_bytes} bytes"
    return ""


def prepare(
    store: Store,
    manifest: SnapshotManifest,
    cache: str,
    launch: str,
    machine: str,
    options: StoreOptions | None = None,
    peers: PeerOptions | None = None,
) -> Prepared:
    """Look at map, cache and hot list, and return what this launch fetches when. Starts nothing.

    `launch`: fingerprint of the launch (`prefetch.record.fingerprint`); `peers`: how nodes of the job share it. Raises
    `SnapshotRefused` for a map that is not the manifest's; `RestoreRefused`, `StoreError` and the errors of `prefetch`.
    """
    from robust_run.prefetch import blockmap
    from robust_run.prefetch import launch as launching

    url = f"{store.url.rstrip('/')}/{catalog.image_path(manifest)}"
    prepared = launching.prepare(url, cache, launch, machine, store_options=options, peers=peers)
    if digest_of(blockmap.encode(prepared.block_map)) != manifest.blocks_sha256:
        raise SnapshotRefused(f"{url}: its block map is not the one of the manifest; build it again: --refresh-setup")
    if prepared.block_map.size_bytes != manifest.image_bytes:
        raise RestoreRefused(f"{url}: its block map is of another length")
    return prepared
