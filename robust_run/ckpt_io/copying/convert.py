"""From whatever a checkpoint is to one of ours: striped, encoded and verified anew."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.boxes import BYTES_OF, box_bytes
from robust_run.ckpt_io.copying.occupied import check_apart
from robust_run.ckpt_io.copying.sources import PlainFile, PlainSource, read_range
from robust_run.ckpt_io.copying.streams import of_plain, of_view
from robust_run.ckpt_io.copying.types import Kind, Progress
from robust_run.ckpt_io.copying.whole import check_whole, linked_files
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.dcp_folder import METADATA_PATH, DcpFolder, ForeignItem
from robust_run.ckpt_io.foreign.safetensors_file import read_tensors
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.saving import (
    FileStream,
    Piece,
    SavePlan,
    abandon,
    begin_save,
    commit,
    open_file,
    open_targets,
    write_file,
)
from robust_run.ckpt_io.types import ALIGNMENT_BYTES, UNIT_BYTES, Blob, Chunk, Codec, LogicalFile, Manifest, Tensor
from robust_run.ckpt_io.views.types import whole_file
from robust_run.store.types import Store

if TYPE_CHECKING:
    import torch

_BLOB_ALIGNMENT_BYTES = 64
#: Tensors of a foreign checkpoint that are read ahead of the one that is written.
_ITEMS_AHEAD = 4
_ITEM_BYTES = 64 << 30
#: Files of one unit or less that are taken over at a time.
_SMALL_FILES = 8
_UNCHANGED = "Nothing was saved; convert it when nobody writes there any more"


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    kind: Kind
    """Of the source."""
    destination: str
    size_bytes: int
    files: int
    tensors: int
    objects: int = 0
    step: int | None = None
    notes: tuple[str, ...] = ()
    """What could not be taken over."""


@dataclass(frozen=True)
class Wishes:
    """How it is to be stored."""

    codec: Codec = "none"
    unit_bytes: int = UNIT_BYTES
    step: int | None = None
    """None: what the source says."""


def convert(source: Checkpoint | PlainSource, where: Address, wishes: Wishes, progress: Progress) -> Converted:
    """Save a checkpoint of ours with the content of another.

    Raises:
        UserError: The destination lies in the source.
        CheckpointError, StoreError: The source is cut off, not all there, changes, or cannot be read. Nothing is committed, and
            what lies at the destination stays as it is.
    """
    if isinstance(source, PlainSource):
        check_whole(source, "convert", "converted")
        check_apart(where.url, source.local_folder)
    item_bytes = _width(source)
    plan = begin_save(where, unit_bytes=wishes.unit_bytes, codec=wishes.codec, item_bytes=item_bytes)
    notes = list(source.tree.notes) if isinstance(source, PlainSource) else []
    try:
        if isinstance(source, Checkpoint):
            manifest, kind = _of_ours(source, plan, wishes, progress), "rrck"
        elif source.dcp is not None:
            manifest, kind = _of_dcp(source, source.dcp, plan, wishes, progress, notes), source.kind
        else:
            manifest, kind = _of_files(source, plan, wishes, progress, notes), source.kind
    except BaseException:
        abandon(plan)
        raise
    return Converted(
        kind=kind,  # type: ignore[arg-type]
        destination=where.url,
        size_bytes=sum(file.size_bytes for file in manifest.files),
        files=len(manifest.files),
        tensors=len(manifest.tensors),
        objects=len(manifest.blobs),
        step=manifest.step,
        notes=tuple(notes),
    )


def _of_ours(source: Checkpoint, plan: SavePlan, wishes: Wishes, progress: Progress) -> Manifest:
    old = source.manifest
    files = []
    for index, file in enumerate(old.files):
        stream = open_file(plan, index, file.name)
        files.append(_written(stream, of_view(source, whole_file(index, file)), progress))
    return commit(
        plan,
        files,
        tensors=old.tensors,
        blobs=old.blobs,
        paths=old.paths,
        step=old.step if wishes.step is None else wishes.step,
        facts=old.facts,
    )


def _of_files(source: PlainSource, plan: SavePlan, wishes: Wishes, progress: Progress, notes: list[str]) -> Manifest:
    """Whole files, bit by bit; of safetensors files, the tensors can be loaded singly as well."""
    taken = source.files + linked_files(source.tree, notes)
    files = _taken_over(source, taken, 0, plan, progress)
    tensors, names = list[Tensor](), Counter[str]()
    for index, file in enumerate(taken):
        if not file.path.endswith(".safetensors"):
            continue
        try:
            found = read_tensors(_reader(source, file), file.size_bytes, index)
        except CheckpointError as error:
            notes.append(f"{file.path}: {error}")
            continue
        names.update(tensor.name for tensor in found)
        tensors += found
    if any(count > 1 for count in names.values()):
        notes.append("several files have tensors of one name: they can only be loaded as files")
        tensors = []
    source.check_unchanged(_UNCHANGED)
    return commit(plan, files, tensors=tensors, step=wishes.step, facts={"imported": "files"})


def _taken_over(
    source: PlainSource, taken: Sequence[PlainFile], first: int, plan: SavePlan, progress: Progress
) -> list[LogicalFile]:
    """Save files as logical files from number `first` on: small ones many at a time, large ones one after the other."""

    def name_of(file: PlainFile) -> str:
        return _name(plan.where.name, file.path) if source.kind == "file" else file.path

    def whole(index: int, file: PlainFile, targets: Sequence[Store]) -> LogicalFile:
        pieces = [Piece(0, memoryview(read_range(source, file, 0, file.size_bytes)))]
        found = write_file(plan, index, name_of(file), pieces, file.size_bytes, threads=1, targets=targets)
        progress(file.size_bytes)
        return found

    with open_targets(plan) as targets, ThreadPoolExecutor(_SMALL_FILES, thread_name_prefix="file") as threads:
        small = {
            index: threads.submit(whole, index, file, targets)
            for index, file in enumerate(taken, first)
            if file.size_bytes <= plan.unit_bytes
        }
        try:
            return [
                small[index].result()
                if index in small
                else _written(open_file(plan, index, name_of(file)), of_plain(source, file), progress)
                for index, file in enumerate(taken, first)
            ]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _name(wanted: str, path: str) -> str:
    """Return what a single file is called: as the checkpoint, which is shown as that file then, if its kind shows in that."""
    return wanted if os.path.splitext(wanted)[1] == os.path.splitext(path)[1] else path


def _reader(source: PlainSource, file: PlainFile):  # type: ignore[no-untyped-def]
    return lambda offset, size: read_range(source, file, offset, size)


def _of_dcp(
    source: PlainSource, folder: DcpFolder, plan: SavePlan, wishes: Wishes, progress: Progress, notes: list[str]
) -> Manifest:
    """Each tensor is taken out of its torch.save archive, and lies in one logical file as raw bytes; other files stay files."""
    stream = open_file(plan, 0, "tensors.bin")
    try:
        tensors = tuple(_dcp_tensors(source, folder, stream, progress))
        blobs = tuple(_dcp_blobs(source, folder, stream, progress))
        file = stream.finish()
    except BaseException:
        stream.abort()
        raise
    known = {METADATA_PATH, *(item.path for item in (*folder.items, *(blob.item for blob in folder.blobs)))}
    others = [each for each in source.files + linked_files(source.tree, notes) if each.path not in known]
    if any(each.path == file.name for each in others):
        raise CheckpointError(f"{file.name} in it has the name that the tensors are saved under: rename it")
    files = [file, *_taken_over(source, others, 1, plan, progress)]
    source.check_unchanged(_UNCHANGED)
    return commit(
        plan, files, tensors=tensors, blobs=blobs, paths=folder.paths, step=wishes.step, facts={"imported": "dcp"}
    )


def _dcp_tensors(source: PlainSource, folder: DcpFolder, stream: FileStream, progress: Progress) -> Iterator[Tensor]:
    from robust_run.ckpt_io.dcp.tensors import byte_view

    wanted = [(tensor, chunk) for tensor in folder.tensors for chunk in tensor.chunks]
    with ThreadPoolExecutor(_ITEMS_AHEAD, thread_name_prefix="item") as readers:
        coming = [
            readers.submit(_loaded, source, folder.items[chunk.file], tensor, chunk)
            for tensor, chunk in wanted[:_ITEMS_AHEAD]
        ]
        at = 0
        for tensor in folder.tensors:
            chunks = []
            for chunk in tensor.chunks:
                value = coming.pop(0).result()
                at += 1
                if at + _ITEMS_AHEAD - 1 < len(wanted):
                    next_tensor, next_chunk = wanted[at + _ITEMS_AHEAD - 1]
                    coming.append(
                        readers.submit(_loaded, source, folder.items[next_chunk.file], next_tensor, next_chunk)
                    )
                _pad(stream, ALIGNMENT_BYTES)
                chunks.append(msgspec.structs.replace(chunk, file=0, offset_bytes=stream.size_bytes))
                stream.write(byte_view(value))
                progress(folder.items[chunk.file].size_bytes)
            yield msgspec.structs.replace(tensor, chunks=tuple(chunks))


def _dcp_blobs(source: PlainSource, folder: DcpFolder, stream: FileStream, progress: Progress) -> Iterator[Blob]:
    for blob in folder.blobs:
        data = _item(source, blob.item)
        _pad(stream, _BLOB_ALIGNMENT_BYTES)
        yield Blob(name=blob.name, file=0, offset_bytes=stream.size_bytes, size_bytes=len(data))
        stream.write(data)
        progress(len(data))


def _loaded(source: PlainSource, item: ForeignItem, tensor: Tensor, chunk: Chunk) -> torch.Tensor:
    """Return a chunk. Only weights are unpickled. Raises CheckpointError if it is not what the metadata says."""
    import torch

    data = _item(source, item)
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, all of which mean the same
        raise CheckpointError(f"{item.path}: tensor {tensor.name[:80]!r} cannot be read: {str(error)[:200]}") from error
    expected = (tensor.dtype, chunk.sizes)
    if not isinstance(value, torch.Tensor) or (str(value.dtype).removeprefix("torch."), tuple(value.shape)) != expected:
        raise CheckpointError(
            f"{item.path}: what lies at {item.offset_bytes} is not tensor {tensor.name[:80]!r} as described"
        )
    return value.detach().contiguous()


def _item(source: PlainSource, item: ForeignItem) -> bytes:
    if item.size_bytes > _ITEM_BYTES:
        raise CheckpointError(f"{item.path}: an item of {item.size_bytes} bytes; {_ITEM_BYTES} is the limit")
    size = next((file.size_bytes for file in source.files if file.path == item.path), 0)
    if item.offset_bytes + item.size_bytes > size:
        raise CheckpointError(
            f"{item.path} has {size} bytes, and something should end at {item.offset_bytes + item.size_bytes}"
        )
    return read_range(source, PlainFile(item.path, size), item.offset_bytes, item.size_bytes)


def _written(stream: FileStream, windows: Iterator[memoryview], progress: Progress) -> LogicalFile:
    try:
        for window in windows:
            stream.write(window)
            progress(len(window))
        return stream.finish()
    except BaseException:
        stream.abort()
        raise


def _pad(stream: FileStream, alignment: int) -> None:
    stream.write(bytes(-stream.size_bytes % alignment))


def _width(source: Checkpoint | PlainSource) -> int:
    """Return the width that most bytes have: what a codec that sorts bytes goes by."""
    tensors = source.manifest.tensors if isinstance(source, Checkpoint) else source.dcp.tensors if source.dcp else ()
    widths = Counter[int]()
    for tensor in tensors:
        widths[BYTES_OF[tensor.dtype]] += box_bytes(tensor.sizes, tensor.dtype)
    return widths.most_common(1)[0][0] if widths else 1
