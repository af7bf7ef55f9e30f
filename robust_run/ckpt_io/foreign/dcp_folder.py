"""What is in a folder that torch.distributed.checkpoint wrote, from its `.metadata`: read without torch, then checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.unpickling import UnpickledRecord, read_metadata
from robust_run.ckpt_io.rules.boxes import BYTES_OF, check_cover
from robust_run.ckpt_io.rules.types import Chunk, Tensor
from robust_run.store.paths import is_clean
from robust_run.store.types import Store


class ForeignItem(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes within a file of the folder."""

    path: str
    """Clean: it does not lead out of the folder."""
    offset_bytes: int
    size_bytes: int


class ForeignBlob(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is no tensor, as torch.save wrote it."""

    name: str
    item: ForeignItem


class DcpFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata of a torch.distributed.checkpoint folder says."""

    tensors: tuple[Tensor, ...]
    """`file` of their chunks is the number of the item; offsets are 0."""
    items: tuple[ForeignItem, ...]
    """Of the chunks: each is a tensor as torch.save wrote it."""
    blobs: tuple[ForeignBlob, ...]
    paths: dict[str, tuple[str | int, ...]]
    """Where a flattened key belongs in the nested state dict."""


METADATA_PATH = ".metadata"
METADATA_BYTES = 512 << 20
_MOST = 1 << 60


def read_dcp_folder(store: Store) -> DcpFolder:
    """Return what a folder holds. Raises NotFound where there is no metadata; CheckpointError for what cannot be."""
    data = store.read_all(METADATA_PATH, METADATA_BYTES)
    try:
        return describe(read_metadata(data))
    except CheckpointError as error:
        raise CheckpointError(f"{store.url}: {error}") from error


def describe(metadata: UnpickledRecord) -> DcpFolder:
    """Check metadata and return what it says. Raises CheckpointError."""
    try:
        return _describe(metadata)
    except CheckpointError:
        raise
    except (AttributeError, TypeError, KeyError, ValueError, OverflowError) as error:
        raise CheckpointError(f"its metadata does not say what it should: {error}"[:300]) from error


def _describe(metadata: Any) -> DcpFolder:
    places = _places(metadata.storage_data)
    tensors, items, blobs = [], list[ForeignItem](), []
    for name, stored in _dictionary(metadata.state_dict_metadata).items():
        if not isinstance(name, str):
            raise TypeError("a key is no text")
        if _kind(stored) == "BytesStorageMetadata":
            blobs.append(ForeignBlob(name=name, item=places[name, None]))
            continue
        if _kind(stored) != "TensorStorageMetadata":
            raise TypeError(f"{name[:80]!r} is neither tensor nor bytes")
        dtype = _dtype(stored.properties)
        if not isinstance(dtype, str) or dtype not in BYTES_OF:
            raise ValueError(f"{name[:80]!r} has elements of a type that is not known")
        chunks = []
        for chunk in stored.chunks:
            offsets = _sizes(chunk.offsets)
            chunks.append(Chunk(offsets=offsets, sizes=_sizes(chunk.sizes), file=len(items), offset_bytes=0))
            items.append(places[name, offsets])
        tensor = Tensor(name=name, dtype=dtype, sizes=_sizes(stored.size), chunks=tuple(chunks))
        check_cover(tensor)
        tensors.append(tensor)
    paths = _paths(metadata, {tensor.name for tensor in tensors} | {blob.name for blob in blobs})
    return DcpFolder(tensors=tuple(tensors), items=tuple(items), blobs=tuple(blobs), paths=paths)


def _places(storage_data: object) -> dict[tuple[str, tuple[int, ...] | None], ForeignItem]:
    """Return where each chunk (by name and offsets) and each blob (by name) lies."""
    found: dict[tuple[str, tuple[int, ...] | None], ForeignItem] = {}
    for index, place in _dictionary(storage_data).items():
        if _kind(index) != "MetadataIndex" or _kind(place) != "_StorageInfo":
            raise TypeError("it was written by another storage writer than torch's own to files")
        if getattr(place, "transform_descriptors", None):
            raise CheckpointError(
                f"{index.fqn!r:.80} went through {place.transform_descriptors!r:.80}, which cannot be undone here; "
                "convert it where it was made"
            )
        if not isinstance(place.relative_path, str) or not is_clean(place.relative_path):
            raise ValueError(f"{place.relative_path!r:.80} is no path within the folder")
        for number in (place.offset, place.length):
            if type(number) is not int or not 0 <= number < _MOST:
                raise ValueError(f"{index.fqn!r:.80} has a place that cannot be")
        begin = getattr(index, "offset", None)
        offsets = None if begin is None else _sizes(begin)
        item = ForeignItem(path=place.relative_path, offset_bytes=place.offset, size_bytes=place.length)
        found[index.fqn, offsets] = item
    return found


def _paths(metadata: UnpickledRecord, names: set[str]) -> dict[str, tuple[str | int, ...]]:
    """Return the planner's notes on nesting; none if there are none, or if they are of another planner."""
    planner_data = getattr(metadata, "planner_data", None)
    if not isinstance(planner_data, dict):
        return {}
    return {
        name: path
        for name, path in planner_data.items()
        if name in names and isinstance(path, tuple) and path and all(type(part) in (str, int) for part in path)
    }


def _dtype(properties: Any) -> object:
    """Return the type of elements: the first of the properties, which torch pickles as a tuple."""
    return properties.state[0] if isinstance(properties.state, tuple) else properties.dtype


def _kind(found: object) -> str:
    return found.kind if isinstance(found, UnpickledRecord) else ""


def _dictionary(found: object) -> Mapping[Any, Any]:
    if not isinstance(found, dict):
        raise TypeError("a dictionary is missing")
    return found


def _sizes(found: object) -> tuple[int, ...]:
    if not isinstance(found, tuple) or any(type(number) is not int or not 0 <= number < _MOST for number in found):
        raise TypeError("sizes that are none")
    return found
