"""The words of reduced values. No behaviour."""

from __future__ import annotations

import msgspec

KINDS = ("", "all_reduce", "DistributedDataParallel's gradient")
"""What the numbers of kinds mean: who has reduced it."""
DTYPES = ("", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
"""What the numbers of dtypes mean."""


class ReducedValue(msgspec.Struct, frozen=True, array_like=True):
    """Checksum of a part of what a collective has left on one rank."""

    rank: int
    group: int
    """Tells groups apart: the same number on all of their ranks."""
    size: int
    """Ranks in the group."""
    seq: int
    """Counts the group's calls, by kind."""
    kind: int
    """Index into `KINDS`."""
    numel: int
    dtype: int
    """Index into `DTYPES`."""
    start: int
    length: int
    """First element of those that were added up, and how many."""
    step: int
    """Steps that the rank had made by then: for people, as ranks may count in their own way."""
    checksum: int


class ReducedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose reduced value is not that of their peers."""

    ranks: tuple[int, ...]
    """Those in the minority; all of the group where there is no majority."""
    others: tuple[int, ...]
    """Those that agree with each other; none where it is a tie."""
    value: ReducedValue
    """Of the first of `ranks`."""
