"""What tests of images share: tools that must be there, trees and OCI layouts to make images of."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

import robust_run


def needs(*tools: str) -> None:
    """Skip a test where a program is not installed."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def python_path() -> str:
    """Return the PYTHONPATH with which another Python finds the package that is tested, and what it needs."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(robust_run.__file__)))
    return os.pathsep.join([package, *filter(None, sys.path)])


def small_tree(folder: Path) -> Path:
    """Make a tree of a few files, among them one with a difficult name, one that is large and one that is empty."""
    tree = folder / "source"
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "usr/lib/large.bin").write_bytes(bytes(range(256)) * 4096)
    (tree / "usr/lib/empty").write_bytes(b"")
    (tree / 'a "strange" name\\x').write_text("strange")
    for number in range(40):
        (tree / f"usr/lib/module_{number:02}.py").write_text(f"value = {number}\n" * 2000)
    (tree / "lib").symlink_to("usr/lib")
    return tree


class Layer:
    """A tar layer, written entry by entry."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `bytes` closes it

    def file(self, name: str, data: bytes = b"", mode: int = 0o644) -> Layer:
        return self.entry(name, size=len(data), mode=mode, data=data)

    def folder(self, name: str, mode: int = 0o755) -> Layer:
        return self.entry(name, type=tarfile.DIRTYPE, mode=mode)

    def link(self, name: str, target: str) -> Layer:
        return self.entry(name, type=tarfile.SYMTYPE, linkname=target)

    def hard_link(self, name: str, target: str) -> Layer:
        return self.entry(name, type=tarfile.LNKTYPE, linkname=target)

    def entry(self, name: str, data: bytes | None = None, **fields: Any) -> Layer:
        info = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(info, field, value)
        self._tar.addfile(info, io.BytesIO(data) if data is not None else None)
        return self

    def bytes(self) -> bytes:
        self._tar.close()
        return self._file.getvalue()


PACK = {
    "": lambda data: data,
    "+gzip": lambda data: (
        gzip.compress(data[: len(data) // 2], mtime=0) + gzip.compress(data[len(data) // 2 :], mtime=0)
    ),
    "+zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


TAG = "t"
"""Of the image in a `layout`."""


def layout(folder: Path, *layers: bytes | Layer, packing: str = "", **config: Any) -> Path:
    """Write an OCI layout with one image."""
    place = folder / "layout"
    (place / "blobs/sha256").mkdir(parents=True)

    def blob(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (place / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    tars = [layer if isinstance(layer, bytes) else layer.bytes() for layer in layers]
    packed = [PACK[packing](tar) for tar in tars]
    # Not for us: tools of others ask for it.
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]}
    described = {"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(described).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(data, f"application/vnd.oci.image.layer.v1.tar{packing}") for data in packed],
    }
    entry = blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": TAG}
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return place


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
