"""Small snapshots for tests: manifests by hand, images from a few files, without any installer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robust_run.snapshot import platforms
from robust_run.snapshot.capture.stage import listed, make_whiteouts
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.pack import Packed, pack
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.types import Key, Package, Root, SnapshotManifest


def key_of(*paths: str) -> Key:
    """Return the key of a set-up that changes these folders."""
    roots = [key.ingredient(f"root {number}", path) for number, path in enumerate(paths)]
    return key.make([key.ingredient("command 001", "pip install x"), *roots])


KEY = key_of("/opt/env")


def manifest_of(**changes: Any) -> SnapshotManifest:
    """Return a manifest that is right, but for the changes."""
    roots = changes.get("roots", (Root(folder="0", path="/opt/env", changed=1),))
    made = key_of(*(root.path for root in roots))
    settings: dict[str, Any] = {
        "key": made.digest,
        "ingredients": made.ingredients,
        "commands": ("pip install x",),
        "roots": roots,
        "platform": platforms.here().platform,
        "image_sha256": "a" * 64,
        "image_bytes": 4096,
        "compression": "zstd",
        "listing_sha256": "b" * 64,
        "items": 1,
        "content_bytes": 1,
        "has_whiteouts": True,
        "packages": (Package(name="x", version="1.0"),),
        "method": "overlay",
        "pinned": False,
        "built_unix_s": 1_790_000_000.0,
        "took_s": 1.0,
        **changes,
    }
    return SnapshotManifest(**settings)


def stage_of(folder: Path, root: str, fill: Callable[[Path], None], removed: tuple[str, ...] = ()) -> Captured:
    """Return what a capture of one root would, with the files that `fill` makes."""
    stage = folder / "made" / "stage"
    (stage / "r0").mkdir(parents=True)
    fill(stage / "r0")
    roots = (Root(folder="0", path=root),)
    has_whiteouts = make_whiteouts(str(stage / "w0"), removed)
    items = listed(str(stage), roots, [removed])
    count = len(items) - len(removed)
    return Captured(
        stage=str(stage),
        roots=(Root(folder="0", path=root, changed=count, removed=len(removed)),),
        items=tuple(items),
        method="overlay",
        has_whiteouts=has_whiteouts,
        outside=(),
        dropped=(),
        took_s=0.1,
        reasons=(),
    )


def some_files(top: Path) -> None:
    """A package, a link, a script."""
    (top / "pkg").mkdir()
    (top / "pkg/__init__.py").write_text("V = 1\n")
    (top / "pkg/data.bin").write_bytes(os.urandom(300_000))
    (top / "bin").mkdir()
    (top / "bin/tool").write_text("#!/bin/sh\n")
    (top / "bin/tool").chmod(0o755)
    (top / "pkg/link").symlink_to("data.bin")


def snapshot_of(
    folder: Path, root: str, fill: Callable[[Path], None] = some_files, removed: tuple[str, ...] = ()
) -> tuple[SnapshotManifest, str]:
    """Return manifest and image of a snapshot of one root."""
    captured = stage_of(folder, root, fill, removed)
    packed = pack(captured, str(folder / "image.sqsh"))
    return described(captured, packed), packed.path


def described(captured: Captured, packed: Packed) -> SnapshotManifest:
    """Return the manifest of what was packed."""
    return manifest_of(
        roots=captured.roots,
        image_sha256=packed.sha256,
        image_bytes=packed.size_bytes,
        listing_sha256=packed.listing_sha256,
        items=len(captured.items),
        content_bytes=sum(item.size_bytes for item in captured.items),
        has_whiteouts=captured.has_whiteouts,
    )
