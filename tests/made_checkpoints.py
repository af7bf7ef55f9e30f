"""Small checkpoints, written by hand: the tests of views need none of the code that saves."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import xxhash

from robust_run.ckpt_io.rules.layout import FileLayout, copy_path, unit_count, unit_size
from robust_run.ckpt_io.rules.manifest import encode
from robust_run.ckpt_io.rules.types import Blob, LogicalFile, Manifest, Tensor

UNIT_BYTES = 1 << 20


def make_checkpoint(
    folders: Sequence[Path],
    files: Mapping[str, bytes],
    tensors: Sequence[Tensor] = (),
    blobs: Sequence[Blob] = (),
    step: int | None = None,
    unit_bytes: int = UNIT_BYTES,
) -> Manifest:
    """Write a checkpoint whose targets are these folders, the first of them the primary."""
    described = tuple(
        LogicalFile(
            name=name,
            size_bytes=len(data),
            unit_bytes=unit_bytes,
            first_target=index % len(folders),
            digests=_digests(data, unit_bytes),
        )
        for index, (name, data) in enumerate(files.items())
    )
    manifest = Manifest(
        uuid=os.urandom(16).hex(),
        created_s=1_700_000_000.0,
        step=step,
        targets=(".", *map(str, folders[1:])),
        files=described,
        tensors=tuple(tensors),
        blobs=tuple(blobs),
    )
    for index, (file, data) in enumerate(zip(described, files.values(), strict=True)):
        _write_parts(folders, FileLayout(manifest.uuid, index, file, len(folders)), data)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for folder in folders[1:]:
        (folder / copy_path(manifest.uuid)).write_bytes(encode(manifest))
    (folders[0] / "MANIFEST").write_bytes(encode(manifest))
    return manifest


def _write_parts(folders: Sequence[Path], layout: FileLayout, data: bytes) -> None:
    unit_bytes = layout.file.unit_bytes
    for target, folder in enumerate(folders):
        part = b"".join(data[unit * unit_bytes : (unit + 1) * unit_bytes] for unit in layout.units_on(target))
        if part:
            path = folder / layout.part_path(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(part)


def _digests(data: bytes, unit_bytes: int) -> str:
    units = unit_count(len(data), unit_bytes)
    parts = (data[at * unit_bytes :][: unit_size(len(data), unit_bytes, at)] for at in range(units))
    return base64.b64encode(b"".join(xxhash.xxh3_128_digest(part) for part in parts)).decode()
