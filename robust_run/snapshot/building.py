"""From a key to a snapshot in the store: capture, pack, describe, publish."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.snapshot import lazy
from robust_run.snapshot.capture.capturing import Setup, capture, discard
from robust_run.snapshot.capture.resolved import packages
from robust_run.snapshot.capture.running import Heard
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.capture.work import sweep
from robust_run.snapshot.errors import SnapshotError
from robust_run.snapshot.holding import Holder
from robust_run.snapshot.key import blanked
from robust_run.snapshot.pack import Packed, pack
from robust_run.snapshot.publish import publish
from robust_run.snapshot.types import Compression, Key, Manifest, Platform
from robust_run.store.types import Store

#: A work folder this old belongs to a build that was killed, whatever its lock says: none takes so long.
SWEPT_AFTER_S = 2 * 86400.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built."""

    key: Key
    setup: Setup
    platform: Platform
    pinned: bool
    compression: Compression = "zstd"
    replace: bool = False
    """Whether it takes the place of the snapshot that is there."""


def build(
    plan: Plan,
    store: Store,
    holder: Holder | None,
    *,
    clock: Clock,
    token: str | None = None,
    on_output: Callable[[bytes], None] = lambda _: None,
) -> Manifest:
    """Build and publish a snapshot. Returns the manifest that is in the store in the end.

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
        if holder is not None:
            holder.say("packing what was installed")
        packed = pack(captured, image, compression=plan.compression)
        blocks = lazy.make_map(image)
        manifest = described(plan, captured, packed, clock.unix_s())
        manifest = msgspec.structs.replace(manifest, blocks_sha256=lazy.digest_of(blocks))
        if holder is not None:
            if not holder.is_ours():
                raise SnapshotError(f"key {plan.key.digest[:16]}: another node took over while this one was building")
            holder.say("storing the snapshot")
        return publish(store, manifest, image, blocks=blocks, token=token, replace=plan.replace)
    finally:
        discard(captured)


def described(plan: Plan, captured: Captured, packed: Packed, now_unix_s: float) -> Manifest:
    """Return the manifest of what was captured and packed."""
    return Manifest(
        key=plan.key.digest,
        ingredients=plan.key.ingredients,
        commands=tuple(blanked(command) for command in plan.setup.commands),
        roots=captured.roots,
        platform=plan.platform,
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
