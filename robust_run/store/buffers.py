"""Lists of buffers that are filled or written one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence


def byte_views(buffers: Sequence[memoryview], *, to_fill: bool) -> list[memoryview]:
    """Return the buffers as views of bytes, without the empty ones.

    Raises ValueError where one is `to_fill` and read-only, TypeError where one is not contiguous.
    """
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    if to_fill and any(view.readonly for view in views):
        raise ValueError("a buffer to read into is read-only")
    return [view for view in views if len(view)]


def without(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of the buffers when their first `count` bytes are done."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []


def total_bytes(views: Sequence[memoryview]) -> int:
    """Return how many bytes they have together."""
    return sum(view.nbytes for view in views)


def scatter(data: bytes | memoryview, views: Sequence[memoryview], at: int) -> None:
    """Copy data into the buffers, from their `at`-th byte on. Too much of it is a ValueError."""
    left = without(list(views), at)
    source = memoryview(data)
    while source:
        if not left:
            raise ValueError("more data than the buffers hold")
        count = min(len(source), len(left[0]))
        left[0][:count] = source[:count]
        source, left = source[count:], without(left, count)


def write_at(descriptor: int, data: bytes | bytearray | memoryview, offset_bytes: int) -> None:
    """Write all bytes to a file, from an offset on. Raises OSError."""
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, offset_bytes)
        left, offset_bytes = left[done:], offset_bytes + done
