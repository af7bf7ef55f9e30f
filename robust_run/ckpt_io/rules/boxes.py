"""Boxes of tensors: how many bytes they have, and whether those of a tensor cover it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.ckpt_io.rules.types import Chunk, Tensor

#: Bytes of an element by dtype, as torch calls it. All of them are little-endian.
BYTES_OF = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "complex32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
DIMENSIONS = 64
SIZE = 1 << 60
#: Comparisons of two chunks, per chunk, that are made before a tensor counts as too intricate; 64 x 64 grids need 130.
_COMPARISONS_PER_CHUNK = 4096


def box_bytes(sizes: Sequence[int], dtype: str) -> int:
    """Return the bytes of a box; a tensor without dimensions has one element."""
    return volume(sizes) * BYTES_OF[dtype]


def volume(sizes: Sequence[int]) -> int:
    """Return the elements of a box.

    Raises:
        ValueError: A size is negative, or there are more than 2**60.
    """
    elements = 1
    if min(sizes, default=0) < 0 or max(sizes, default=0) > SIZE:
        raise ValueError("a size is negative or beyond 2**60")
    for size in sizes:
        elements *= size
        if elements > SIZE:
            if 0 in sizes:
                return 0
            raise ValueError("more than 2**60 elements")
    return elements


def check_cover(tensor: Tensor) -> None:
    """Each element of a tensor lies in exactly one chunk.

    Raises:
        ValueError: Chunks overlap, leave something out, or lie outside.
    """
    rank = len(tensor.sizes)
    if rank > DIMENSIONS:
        raise ValueError(f"{rank} dimensions, at most {DIMENSIONS} are possible")
    elements, covered = volume(tensor.sizes), 0
    for chunk in tensor.chunks:
        if len(chunk.offsets) != rank or len(chunk.sizes) != rank:
            raise ValueError(f"a chunk of {len(chunk.sizes)} dimensions, the tensor has {rank}")
        for begin, size, whole in zip(chunk.offsets, chunk.sizes, tensor.sizes, strict=True):
            if begin < 0 or size < 0 or begin + size > whole:
                raise ValueError("a chunk is not within the tensor")
        covered += volume(chunk.sizes)
    if covered != elements:
        raise ValueError(f"its chunks have {covered} elements, the tensor has {elements}")
    if len(tensor.chunks) > 1:
        _check_apart([chunk for chunk in tensor.chunks if volume(chunk.sizes)], rank)


def _check_apart(chunks: Sequence[Chunk], rank: int) -> None:
    """No two chunks share an element: a sweep along the dimension in which most of them begin at places of their own."""
    if not rank or len(chunks) < 2:
        if len(chunks) > 1:
            raise ValueError("two chunks overlap")
        return
    along = max(range(rank), key=lambda dimension: len({chunk.offsets[dimension] for chunk in chunks}))
    budget = _COMPARISONS_PER_CHUNK * len(chunks)
    active: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.offsets[along]):
        begin = chunk.offsets[along]
        active = [other for other in active if other.offsets[along] + other.sizes[along] > begin]
        budget -= len(active) + 1
        if budget < 0:
            raise ValueError(f"its {len(chunks)} chunks are too intricate to be checked")
        if any(_overlap(chunk, other) for other in active):
            raise ValueError("two chunks overlap")
        active.append(chunk)


def _overlap(one: Chunk, other: Chunk) -> bool:
    return all(
        a < b + b_size and b < a + a_size
        for a, a_size, b, b_size in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )
