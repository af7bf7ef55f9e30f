"""DCP's metadata as a manifest, and back; from a manifest that may come from anybody."""

from __future__ import annotations

import pytest
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

from robust_run.ckpt_io.dcp.metadata import contents, logical_files, metadata_of, paths_of
from robust_run.ckpt_io.errors import ManifestRefused
from robust_run.ckpt_io.rules.segments import Segment, StoredItem
from robust_run.ckpt_io.rules.types import Blob, LogicalFile, Manifest
from robust_run.errors import UserError

FILES = [LogicalFile(name=f"rank-{rank}", size_bytes=1 << 20) for rank in range(2)]


def written(name: str, rank: int, offsets: tuple[int, ...] | None, segment: Segment) -> WriteResult:
    return WriteResult(MetadataIndex(name, offsets), segment.size_bytes, StoredItem(segment, FILES[rank]))


def sharded(
    *sizes: tuple[int, int], dtypes: tuple[str, ...] = ("float32", "float32")
) -> tuple[Metadata, list[list[WriteResult]]]:
    """A tensor of two dimensions by rows over two ranks, and an object."""
    chunks, results, row = [], [], 0
    for rank, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True)):
        chunks.append(ChunkStorageMetadata(torch.Size([row, 0]), torch.Size(size)))
        segment = Segment(rank, 4096 * rank, size[0] * size[1] * 4, dtype, size)
        results.append([written("w", rank, (row, 0), segment)])
        row += size[0]
    results[1].append(written("o", 1, None, Segment(1, 8192, 10, "uint8", (10,))))
    whole = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([row, sizes[0][1]]), chunks)
    paths = {"w": ("model", "w"), "o": ("list", 0), "gone": ("gone",)}
    return Metadata({"w": whole, "o": BytesStorageMetadata()}, planner_data=paths), results


def manifest_of(metadata: Metadata, results: list[list[WriteResult]]) -> Manifest:
    tensors, blobs = contents(metadata, results)
    paths = paths_of(metadata.planner_data, ["w", "o"])
    return Manifest(
        uuid="0" * 32, created_s=0.0, files=logical_files(results), tensors=tensors, blobs=blobs, paths=paths
    )


def test_metadata_comes_back_with_the_place_of_each_chunk() -> None:
    metadata, results = sharded((3, 5), (2, 5))
    manifest = manifest_of(metadata, results)
    found = metadata_of(manifest, "/c")
    assert [file.name for file in manifest.files] == ["rank-0", "rank-1"]
    assert found.state_dict_metadata["w"].size == torch.Size([5, 5])
    assert found.state_dict_metadata["w"].chunks == metadata.state_dict_metadata["w"].chunks
    assert isinstance(found.state_dict_metadata["o"], BytesStorageMetadata)
    assert found.planner_data == {"w": ("model", "w"), "o": ("list", 0)}
    assert found.storage_data[MetadataIndex("w", (3, 0))] == Segment(1, 4096, 40, "float32", (2, 5))
    assert found.storage_data[MetadataIndex("o")] == Segment(1, 8192, 10, "uint8", (10,))


def test_empty_shards_of_uneven_sharding_are_left_out() -> None:
    (tensor,), _ = contents(*sharded((3, 5), (0, 5)))
    assert len(tensor.chunks) == 1 and tensor.sizes == (3, 5)


def test_the_dtype_is_what_was_written_and_one_for_all_chunks() -> None:
    (tensor,), _ = contents(*sharded((3, 5), (2, 5), dtypes=("bfloat16", "bfloat16")))
    assert tensor.dtype == "bfloat16"
    with pytest.raises(UserError, match=r"'w' have dtypes bfloat16, float32"):
        contents(*sharded((3, 5), (2, 5), dtypes=("bfloat16", "float32")))


def test_a_position_beyond_everything_is_refused_before_torch_makes_a_list_of_it() -> None:
    blob = Blob(name="o", file=0, offset_bytes=0, size_bytes=1)
    manifest = Manifest(
        uuid="0" * 32, created_s=0.0, files=(FILES[0],), blobs=(blob,), paths={"o": ("list", 2_000_000_000)}
    )
    with pytest.raises(ManifestRefused, match="position 2000000000"):
        metadata_of(manifest, "/c")


def test_a_planner_that_does_not_flatten_has_no_paths() -> None:
    assert paths_of(None, ["w"]) == {}
