"""Where what a rank saves lies in its logical file. Pure.

Tensors come first, in the order of the plan, each at a multiple of 4 KiB, which is what direct I/O and memory mapping ask for;
objects come after them, close together, for there are often thousands of a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robust_run.ckpt_io.rules.types import ALIGNMENT_BYTES, LogicalFile

OBJECT_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Segment:
    """A chunk of a tensor, or an object, within a logical file."""

    file: int
    """Index of the logical file."""
    offset_bytes: int
    size_bytes: int
    dtype: str
    """Of an object: uint8."""
    sizes: tuple[int, ...]
    """Of the chunk, in elements."""


@dataclass(frozen=True)
class StoredItem:
    """What a rank tells the coordinator of one item: where it lies, and the file that it lies in."""

    segment: Segment
    logical: LogicalFile
    """The same object in all items of a rank, so that it travels once."""


def lay_out(tensor_bytes: Sequence[int], object_bytes: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Return the offsets of tensors, those of objects, and the size of the file, all in bytes."""
    end = 0
    offsets: tuple[list[int], list[int]] = ([], [])
    rows = ((offsets[0], tensor_bytes, ALIGNMENT_BYTES), (offsets[1], object_bytes, OBJECT_ALIGNMENT_BYTES))
    for found, sizes, alignment_bytes in rows:
        for size_bytes in sizes:
            start = _up(end, alignment_bytes) if size_bytes else end
            found.append(start)
            end = start + size_bytes
    return *offsets, end


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
