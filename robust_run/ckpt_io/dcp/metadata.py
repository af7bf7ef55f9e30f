"""DCP's metadata, to and from a manifest. No pickle: torch's own `.metadata` file is one, and runs all that it contains.

DCP's `Metadata` has the tensors with their chunks, the keys of objects, and in `planner_data` where a flattened key belongs in
the nested state dict. All of it is plain text and numbers, and the manifest has a place for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from robust_run.ckpt_io.dcp.tensors import dtype_of
from robust_run.ckpt_io.errors import ManifestRefused
from robust_run.ckpt_io.rules.boxes import box_bytes
from robust_run.ckpt_io.rules.segments import Segment, StoredItem
from robust_run.ckpt_io.rules.types import Blob, Chunk, LogicalFile, Manifest, Tensor
from robust_run.errors import UserError

Paths = dict[str, tuple[str | int, ...]]


def contents(
    metadata: Metadata, results: Iterable[Sequence[WriteResult]]
) -> tuple[tuple[Tensor, ...], tuple[Blob, ...]]:
    """Return the tensors and objects of a manifest, from DCP's metadata and what all ranks wrote.

    Raises:
        UserError: A planner gave the chunks of one tensor different dtypes.
    """
    stored: dict[str, list[tuple[MetadataIndex, Segment]]] = {}
    for result in (result for rank in results for result in rank):
        written: StoredItem = result.storage_data
        stored.setdefault(result.index.fqn, []).append((result.index, written.segment))
    tensors, blobs = [], []
    for name, entry in metadata.state_dict_metadata.items():
        parts = stored.get(name, [])
        if isinstance(entry, TensorStorageMetadata):
            tensors.append(_tensor(name, entry, parts))
        else:
            segment = parts[0][1]
            blobs.append(
                Blob(name=name, file=segment.file, offset_bytes=segment.offset_bytes, size_bytes=segment.size_bytes)
            )
    return tuple(tensors), tuple(blobs)


def logical_files(results: Iterable[Sequence[WriteResult]]) -> tuple[LogicalFile, ...]:
    """Return the logical files that all ranks wrote, in the order of their indices."""
    found: dict[int, LogicalFile] = {}
    for result in (result for rank in results for result in rank):
        found[result.storage_data.segment.file] = result.storage_data.logical
    assert sorted(found) == list(range(len(found))), "the coordinator numbers the files, and each rank writes its own"
    return tuple(found[index] for index in sorted(found))


def _tensor(name: str, entry: TensorStorageMetadata, parts: Sequence[tuple[MetadataIndex, Segment]]) -> Tensor:
    """Empty chunks, which uneven sharding leaves to some ranks, are not kept: they are nothing to read."""
    dtypes = {segment.dtype for _, segment in parts} or {str(entry.properties.dtype).removeprefix("torch.")}
    if len(dtypes) > 1:
        raise UserError(
            f"chunks of tensor {name!r} have dtypes {', '.join(sorted(map(str, dtypes)))}: save it in one dtype"
        )
    chunks = tuple(
        Chunk(
            offsets=tuple(index.offset or ()), sizes=segment.sizes, file=segment.file, offset_bytes=segment.offset_bytes
        )
        for index, segment in parts
        if segment.size_bytes
    )
    return Tensor(name=name, dtype=str(dtypes.pop()), sizes=tuple(entry.size), chunks=chunks)


def paths_of(planner_data: object, known: Iterable[str]) -> Paths:
    """Return where keys belong, from the data of a planner; empty where the planner did not flatten the state dict."""
    if not isinstance(planner_data, Mapping):
        return {}
    wanted = set(known)
    return {str(key): tuple(path) for key, path in planner_data.items() if key in wanted}


def metadata_of(manifest: Manifest, url: str) -> Metadata:
    """Return DCP's metadata; `storage_data` is a dict from `MetadataIndex` to `Segment`.

    Raises:
        ManifestRefused: A path has a position in a list that is longer than everything there is: torch would build that list.
        ObjectRefused: A dtype that this version of torch does not have.
    """
    longest = max((part for path in manifest.paths.values() for part in path if isinstance(part, int)), default=0)
    if longest and longest >= len(manifest.paths):
        raise ManifestRefused(f"a path has position {longest}, there are {len(manifest.paths)} paths", url)
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    segments: dict[MetadataIndex, Segment] = {}
    for tensor in manifest.tensors:
        entries[tensor.name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype_of(tensor.dtype)),
            size=torch.Size(tensor.sizes),
            chunks=[
                ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in tensor.chunks
            ],
        )
        for chunk in tensor.chunks:
            segments[MetadataIndex(tensor.name, chunk.offsets)] = Segment(
                chunk.file, chunk.offset_bytes, box_bytes(chunk.sizes, tensor.dtype), tensor.dtype, chunk.sizes
            )
    for blob in manifest.blobs:
        entries[blob.name] = BytesStorageMetadata()
        segments[MetadataIndex(blob.name)] = Segment(
            blob.file, blob.offset_bytes, blob.size_bytes, "uint8", (blob.size_bytes,)
        )
    return Metadata(state_dict_metadata=entries, planner_data=manifest.paths or None, storage_data=segments)
