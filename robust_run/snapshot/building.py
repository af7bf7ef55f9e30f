"""From a key to a snapshot in the store: capture, pack, describe, publish."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.snapshot import catalog, fetch, lazy
from robust_run.snapshot.capture.capturing import CaptureSetup, capture, discard
from robust_run.snapshot.capture.resolved import packages
from robust_run.snapshot.capture.running import Heard
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.capture.work import sweep
from robust_run.snapshot.errors import SnapshotError
from robust_run.snapshot.holding import Holder
from robust_run.snapshot.pack import Packed, pack
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules.key import blanked
from robust_run.snapshot.rules.types import Compression, Key, SnapshotManifest, SnapshotPlatform
from robust_run.store.errors import AlreadyExists, NotFound, StoreError
from robust_run.store.types import Store

#: A work folder this old belongs to a build that was killed, also if it seems locked: none takes so long.
SWEPT_AFTER_S = 2 * 86400.0


class BuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built."""

    key: Key
    setup: CaptureSetup
    platform: SnapshotPlatform
    pinned: bool
    compression: Compression = "zstd"
    replace: bool = False
    """Whether it takes the place of the snapshot that is there."""


#: Runs the commands of a set-up, giving what they write, and returns what they changed.
Capture = Callable[[CaptureSetup, Callable[[bytes], None]], Captured]


def build(
    plan: BuildPlan,
    store: Store,
    holder: Holder | None,
    *,
    clock: Clock,
    token: str | None = None,
    on_output: Callable[[bytes], None] = lambda _: None,
    capture: Capture = capture,
    keep_in: str = "",
) -> SnapshotManifest:
    """Build and publish a snapshot. Returns the manifest that is in the store in the end.

    `capture`: runs the commands and returns what they changed. `keep_in`: the cache of this node, which then need not bring it;
    empty: it is kept in the store alone.

    Raises `SetupFailed`, `CaptureRefused`, `ToolMissing`, `SnapshotError` (another took over), `StoreError`.
    """

    def hear(line: bytes) -> None:
        on_output(line)
        if holder is not None:
            holder.hear(line)

    for folder in plan.setup.work_folders:
        with suppress(OSError):
            sweep(folder, SWEPT_AFTER_S, clock.unix_s())
    captured = capture(plan.setup, Heard(hear, on_output.check) if isinstance(on_output, Heard) else hear)
    image = os.path.join(os.path.dirname(captured.stage), f"image-{uuid.uuid4().hex}.sqsh")
    try:
        hear(b"packing what was installed")
        packed = pack(captured, image, compression=plan.compression)
        blocks = lazy.make_map(image)
        manifest = described(plan, captured, packed, clock.unix_s())
        manifest = msgspec.structs.replace(manifest, blocks_sha256=lazy.digest_of(blocks))
        if holder is not None:
            if not holder.is_ours():
                raise SnapshotError(f"key {plan.key.digest[:16]}: another node took over while this one was building")
            holder.say("storing the snapshot")
        published = publish(store, manifest, image, blocks=blocks, token=token, replace=plan.replace)
        if keep_in and published.image_sha256 == manifest.image_sha256:
            fetch.keep(image, published, keep_in)
        return published
    finally:
        discard(captured)


def described(plan: BuildPlan, captured: Captured, packed: Packed, now_unix_s: float) -> SnapshotManifest:
    """Return the manifest of what was captured and packed."""
    return SnapshotManifest(
        key=plan.key.digest,
        ingredients=plan.key.ingredients,
        commands=tuple(blanked(command) for command in plan.setup.commands),
        roots=captured.roots,
        platform=captured.platform or plan.platform,
        image_sha256=packed.sha256,
        image_bytes=packed.size_bytes,
        compression=packed.compression,
        listing_sha256=packed.listing_sha256,
        items=len(captured.items),
        content_bytes=sum(item.size_bytes for item in captured.items),
        has_whiteouts=captured.has_whiteouts,
        packages=packages(captured.stage, captured.roots),
        method=captured.method,
        outside=captured.outside,
        dropped=captured.dropped,
        pinned=plan.pinned,
        built_unix_s=now_unix_s,
        took_s=captured.took_s,
        builder=socket.gethostname(),
    )


# --- Putting a snapshot into a store: the image first, under the name of its content; then the manifest: now it is a snapshot.
#
# A builder that is killed in between leaves an image that no manifest names. Of two builders the first manifest stays.

_PIECE_BYTES = 8 << 20


def publish(
    store: Store,
    manifest: SnapshotManifest,
    image: str,
    *,
    blocks: bytes = b"",
    token: str | None = None,
    replace: bool = False,
) -> SnapshotManifest:
    """Write image and manifest. Returns the manifest that is in the store: another's, if that was there first.

    `blocks`: the image's block map, for nodes that mount it before it is there. `replace`: this one takes the place of what is
    there (`--refresh-setup`). Raises `StoreError`, `SnapshotRefused`.
    """
    data = manifests.encode(manifest, token)
    path = catalog.image_path(manifest)
    if replace or not _is_there(store, path, manifest.image_bytes):  # what is there may be damaged
        _upload(store, path, image, manifest.image_bytes)
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


def _upload(store: Store, path: str, image: str, size_bytes: int) -> None:
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
        writer.finish()
    except BaseException:
        writer.abort()
        raise
