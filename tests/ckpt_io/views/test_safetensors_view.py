"""Tensors of a checkpoint are seen as one safetensors file, in whatever boxes they were saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.types import Chunk, LogicalFile, Manifest, Tensor
from robust_run.ckpt_io.views.safetensors_view import safetensors_view
from robust_run.ckpt_io.views.types import VirtualFile


@dataclass
class Saved:
    """Boxes of arrays, as ranks lay them out in logical files."""

    files: list[bytearray] = field(default_factory=lambda: [bytearray(), bytearray()])
    tensors: list[Tensor] = field(default_factory=list)

    def add(self, name: str, array: np.ndarray, cuts: list[list[int]]) -> None:
        """Save an array cut at these places of each axis, the boxes in turn to one file and the other."""
        chunks = []
        for number, box in enumerate(boxes(array.shape, cuts)):
            file = self.files[number % 2]
            file += bytes(-len(file) % 64)
            part = array[tuple(slice(begin, end) for begin, end in box)]
            chunks.append(
                Chunk(
                    offsets=tuple(begin for begin, _ in box),
                    sizes=part.shape,
                    file=number % 2,
                    offset_bytes=len(file),
                )
            )
            file += part.tobytes()
        self.tensors.append(Tensor(name=name, dtype=str(array.dtype), sizes=array.shape, chunks=tuple(chunks)))

    @property
    def manifest(self) -> Manifest:
        files = tuple(LogicalFile(name=str(number), size_bytes=len(file)) for number, file in enumerate(self.files))
        return Manifest(uuid="0" * 32, created_s=0.0, step=7, files=files, tensors=tuple(self.tensors))

    def bytes_of(self, file: VirtualFile, start: int, end: int) -> bytes:
        """Read a virtual file as a reader would."""
        found = b""
        for piece in file.pieces(start, end):
            if isinstance(piece, bytes):
                found += piece
            else:
                found += self.files[piece.file][piece.offset_bytes : piece.offset_bytes + piece.size_bytes]
        return found


def boxes(shape: tuple[int, ...], cuts: list[list[int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield all boxes of a grid: for each axis, where they begin and end."""
    edges = [
        sorted({0, size, *(cut for cut in axis if 0 < cut < size)}) for size, axis in zip(shape, cuts, strict=True)
    ]
    yield from product(*(list(pairwise(axis)) or [(0, 0)] for axis in edges))


arrays = st.lists(st.integers(0, 5), max_size=3).flatmap(
    lambda sizes: st.tuples(
        st.just(tuple(sizes)),
        st.tuples(*(st.lists(st.integers(0, 5), max_size=2) for _ in sizes)),
        st.sampled_from(["float32", "int64", "uint8", "float16", "bool"]),
    )
)


@given(st.lists(arrays, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_safetensors_reads_what_was_saved_in_any_grid_of_boxes(described: list, random) -> None:
    saved, expected = Saved(), {}
    for number, (shape, cuts, dtype) in enumerate(described):
        size = int(np.prod(shape))
        array = np.frombuffer(random.randbytes(size), np.uint8).astype(dtype).reshape(shape)
        saved.add(f"tensor.{number}", array, list(cuts))
        expected[f"tensor.{number}"] = array
    view = safetensors_view(saved.manifest, "all.safetensors")
    whole = saved.bytes_of(view, 0, view.size_bytes)
    assert len(whole) == view.size_bytes
    loaded = safetensors.numpy.load(whole)
    assert loaded.keys() == expected.keys()
    for name, array in expected.items():
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
    start = random.randint(0, view.size_bytes)
    end = random.randint(start, view.size_bytes + 3)
    assert saved.bytes_of(view, start, end) == whole[start:end]


def test_a_tensor_in_one_chunk_is_one_piece_of_its_file() -> None:
    saved = Saved()
    saved.add("weight", np.arange(1000, dtype="float32"), [[]])
    view = safetensors_view(saved.manifest, "x")
    header, *pieces = view.pieces(0, view.size_bytes)
    assert isinstance(header, bytes)
    assert [(piece.file, piece.offset_bytes, piece.size_bytes) for piece in pieces] == [(0, 0, 4000)]


def test_tensors_are_aligned_to_their_elements_and_the_header_says_the_step() -> None:
    saved = Saved()
    saved.add("a", np.arange(3, dtype="uint8"), [[]])
    saved.add("b", np.arange(3, dtype="float64"), [[]])
    view = safetensors_view(saved.manifest, "x")
    whole = saved.bytes_of(view, 0, view.size_bytes)
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    assert length % 8 == 0
    assert header["b"]["data_offsets"] == [0, 24]
    assert header["__metadata__"]["rrck.step"] == "7"


def test_a_type_that_safetensors_lacks_is_refused_by_name() -> None:
    saved = Saved()
    saved.add("z", np.zeros(2, dtype="complex128"), [[]])
    with pytest.raises(CheckpointError, match="'z' is complex128"):
        safetensors_view(saved.manifest, "x")
