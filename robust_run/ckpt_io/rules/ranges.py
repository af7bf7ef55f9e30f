"""Which bytes of a stored chunk a box of it is. Pure arithmetic.

A chunk lies in C order. A box of it is a number of *runs*: stretches of bytes without a gap, all of one length. A slice along the
first dimension is one run; a slice of columns is as many runs as there are rows, which are not worth a read each: then the box
is *widened* until its runs are, and what was asked for is cut out of it in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

#: Runs shorter than this are not read one by one: several fit a unit, which is read whole to be verified anyway.
SHORT_RUN_BYTES = 256 << 10


@dataclass(frozen=True)
class Box:
    """A part of an array: where it begins and how far it goes, per dimension, in elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many there are in it."""
        return prod(self.sizes)


def runs(shape: Sequence[int], box: Box, item_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size in bytes, within the chunk, of each run; in the order of the box's own bytes."""
    if box.elements == 0:
        return
    strides = _strides_bytes(shape, item_bytes)
    size_bytes = run_bytes(shape, box, item_bytes)
    begin = sum(offset * stride for offset, stride in zip(box.offsets, strides, strict=True))
    outer = _run_dimension(shape, box)
    for index in product(*(range(size) for size in box.sizes[:outer])):
        yield begin + sum(i * stride for i, stride in zip(index, strides, strict=False)), size_bytes


def run_bytes(shape: Sequence[int], box: Box, item_bytes: int) -> int:
    """Return the size of each run of a box."""
    return prod(box.sizes[_run_dimension(shape, box) :]) * item_bytes


def widen(shape: Sequence[int], box: Box, item_bytes: int, short_bytes: int = SHORT_RUN_BYTES) -> Box:
    """Return the smallest box around this one that is one run, or has runs that are not short."""
    offsets, sizes = list(box.offsets), list(box.sizes)
    for dimension in reversed(range(len(sizes))):
        wide = Box(tuple(offsets), tuple(sizes))
        if prod(sizes[: _run_dimension(shape, wide)]) <= 1 or run_bytes(shape, wide, item_bytes) >= short_bytes:
            break
        offsets[dimension], sizes[dimension] = 0, shape[dimension]
    return Box(tuple(offsets), tuple(sizes))


def pieces(shape: Sequence[int], box: Box, item_bytes: int, limit_bytes: int) -> Iterator[tuple[Box, Box]]:
    """Cut a box so that what must be read for each piece fits a limit; yield each piece and the box to read for it.

    Only one element can be larger than the limit, and what surrounds it up to one short run.
    """
    wide = widen(shape, box, item_bytes)
    size_bytes = wide.elements * item_bytes
    cut = next((dimension for dimension, size in enumerate(box.sizes) if size > 1), None)
    if size_bytes <= limit_bytes or cut is None:
        yield box, wide
        return
    length = box.sizes[cut]
    step = min(max(length * limit_bytes // size_bytes, 1), length - 1)
    for start in range(0, length, step):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[cut], sizes[cut] = box.offsets[cut] + start, min(step, length - start)
        yield from pieces(shape, Box(tuple(offsets), tuple(sizes)), item_bytes, limit_bytes)


def within(inner: Box, outer: Box) -> tuple[slice, ...]:
    """Return the slices that cut `inner` out of an array that holds `outer`."""
    starts = (i - o for i, o in zip(inner.offsets, outer.offsets, strict=True))
    return tuple(slice(start, start + size) for start, size in zip(starts, inner.sizes, strict=True))


def _strides_bytes(shape: Sequence[int], item_bytes: int) -> list[int]:
    strides, stride = [], item_bytes
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return strides[::-1]


def _run_dimension(shape: Sequence[int], box: Box) -> int:
    """Return the first dimension that a run covers: all after it are wanted whole."""
    dimension = len(shape)
    while dimension > 0:
        dimension -= 1
        if box.sizes[dimension] != shape[dimension]:
            break
    return dimension
