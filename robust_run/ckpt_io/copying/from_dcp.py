"""From a folder of torch.distributed.checkpoint to a checkpoint of ours: tensors and objects out of its torch.save archives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from robust_run.ckpt_io.copying.sources import PlainFile, PlainSource, read_range
from robust_run.ckpt_io.copying.taking import UNCHANGED, Wishes, taken_over
from robust_run.ckpt_io.copying.types import Progress
from robust_run.ckpt_io.copying.whole import linked_files
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.dcp_folder import METADATA_PATH, DcpFolder, ForeignItem
from robust_run.ckpt_io.rules.types import ALIGNMENT_BYTES, Blob, Chunk, Manifest, Tensor
from robust_run.ckpt_io.saving import FileStream, SavePlan, commit, open_file

if TYPE_CHECKING:
    import torch

_BLOB_ALIGNMENT_BYTES = 64
#: Tensors of a foreign checkpoint that are read ahead of the one that is written.
_ITEMS_AHEAD = 4
_ITEM_BYTES = 64 << 30


def of_dcp(
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
    files = [file, *taken_over(source, others, 1, plan, progress)]
    source.check_unchanged(UNCHANGED)
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


def _pad(stream: FileStream, alignment: int) -> None:
    stream.write(bytes(-stream.size_bytes % alignment))
