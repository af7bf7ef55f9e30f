"""Inspection of a checkpoint of any kind: what is in it, told without running anything of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from robust_run.ckpt_io.address import Address, parse
from robust_run.ckpt_io.copying.sources import PlainFile, PlainSource, open_source, read_range
from robust_run.ckpt_io.copying.types import Kind
from robust_run.ckpt_io.copying.whole import faults
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.safetensors_file import read_tensors
from robust_run.ckpt_io.foreign.torch_file import NotLookedInto, torch_tensors
from robust_run.ckpt_io.presence import Presence
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.rules.boxes import box_bytes
from robust_run.ckpt_io.rules.types import Tensor
from robust_run.store import paths
from robust_run.store.opening import local_path, open_store
from robust_run.store.progress import size


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    size_bytes: int
    chunks: int = 1


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One file, logical or not."""

    name: str
    size_bytes: int
    codec: str = "none"
    stored_bytes: int | None = None
    """None: as many as it has."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint."""

    url: str
    kind: Kind
    size_bytes: int
    step: int | None = None
    created_s: float | None = None
    targets: tuple[str, ...] = ()
    files: tuple[FileFacts, ...]
    tensors: tuple[TensorFacts, ...] = ()
    objects: tuple[str, ...] = ()
    """Names of what is no tensor."""
    facts: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    """Files that are not whole or not there, and why."""


def contents_of(url: str, also: Sequence[str] = ()) -> Contents:
    """Look into a checkpoint. Raises CheckpointError or StoreError."""
    source = open_source(url, also, links="tell")
    try:
        return _ours(source, parse(url, tuple(also))) if isinstance(source, Checkpoint) else _plain(source)
    finally:
        source.close()


def contents_lines(contents: Contents) -> Iterator[str]:
    """Yield what a person wants to read."""
    step = f", step {contents.step}" if contents.step is not None else ""
    saved = time.strftime(", saved %Y-%m-%d %H:%M:%S", time.localtime(contents.created_s)) if contents.created_s else ""
    kinds = {
        "rrck": "checkpoint",
        "dcp": "torch.distributed.checkpoint folder",
        "file": "file",
        "folder": "folder of files",
    }
    yield f"{contents.url}: {kinds[contents.kind]}, {size(contents.size_bytes)}{step}{saved}"
    if len(contents.targets) > 1:
        yield f"targets: {', '.join(contents.targets)}"
    for name, fact in contents.facts.items():
        yield f"{name}: {fact}"
    for file in contents.files:
        stored = f", {file.codec}, {size(file.stored_bytes)} stored" if file.stored_bytes is not None else ""
        yield f"file {file.name}: {size(file.size_bytes)}{stored}"
    for tensor in contents.tensors:
        chunks = f", {tensor.chunks} chunks" if tensor.chunks > 1 else ""
        yield f"tensor {tensor.name}: {tensor.dtype} {list(tensor.sizes)}, {size(tensor.size_bytes)}{chunks}"
    for name in contents.objects:
        yield f"object {name}"
    yield from contents.notes
    for line in contents.damaged:
        yield f"damaged: {line}"


def _ours(source: Checkpoint, where: Address) -> Contents:
    """Of its parts, names and lengths are looked at, as `robust ckpt list` does: what is in them is for `verify`."""
    manifest = source.manifest
    fault = Presence(open_store).fault(where, manifest)
    files = []
    for layout in source.layouts:
        stored = None
        if layout.file.codec != "none":
            stored = sum(layout.part_bytes(target) for target in range(len(manifest.targets)))
        file = layout.file
        files.append(FileFacts(name=file.name, size_bytes=file.size_bytes, codec=file.codec, stored_bytes=stored))
    return Contents(
        url=source.url,
        kind="rrck",
        size_bytes=sum(file.size_bytes for file in manifest.files),
        step=manifest.step,
        created_s=manifest.created_s,
        targets=tuple(source.targets.url(target) for target in range(len(manifest.targets))),
        files=tuple(files),
        tensors=_tensors(manifest.tensors),
        objects=tuple(blob.name for blob in manifest.blobs),
        facts=manifest.facts,
        damaged=() if fault is None else (fault,),
    )


def _plain(source: PlainSource) -> Contents:
    tensors: tuple[TensorFacts, ...] = ()
    objects: tuple[str, ...] = ()
    notes, unread = list(source.tree.notes), dict[str, str]()
    if source.dcp is not None:
        tensors = _tensors(source.dcp.tensors)
        objects = tuple(blob.name for blob in source.dcp.blobs)
    else:
        for index, file in enumerate(source.files):
            try:
                tensors += _of_file(source, file, index)
            except NotLookedInto as error:
                notes.append(f"{file.path}: {error}")
            except CheckpointError as error:
                unread[file.path] = f"{file.path}: {error}"
    return Contents(
        url=paths.shown(source.url),
        kind=source.kind,
        size_bytes=sum(file.size_bytes for file in source.files),
        files=tuple(FileFacts(name=file.path, size_bytes=file.size_bytes) for file in source.files),
        tensors=tensors,
        objects=objects,
        notes=tuple(notes),
        damaged=(*unread.values(), *faults(source, unread)),
    )


def _of_file(source: PlainSource, file: PlainFile, index: int) -> tuple[TensorFacts, ...]:
    if file.path.endswith(".safetensors"):
        read = read_tensors(lambda at, count: read_range(source, file, at, count), file.size_bytes, index)
        return _tensors(read)
    if not file.path.endswith((".pt", ".pth", ".bin")):
        return ()
    if paths.scheme_of(source.store.url) not in ("", "file"):
        raise NotLookedInto(
            "what torch.save wrote is only looked into on this machine; robust ckpt restore brings it here"
        )
    found = torch_tensors(local_path(paths.child(source.store.url, file.path)))
    return tuple(
        TensorFacts(name=each.name, dtype=each.dtype, sizes=each.sizes, size_bytes=each.size_bytes) for each in found
    )


def _tensors(tensors: Sequence[Tensor]) -> tuple[TensorFacts, ...]:
    return tuple(
        TensorFacts(
            name=tensor.name,
            dtype=tensor.dtype,
            sizes=tensor.sizes,
            size_bytes=box_bytes(tensor.sizes, tensor.dtype),
            chunks=len(tensor.chunks),
        )
        for tensor in tensors
    )
