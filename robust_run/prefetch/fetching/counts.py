"""What a fetcher has done so far."""

from __future__ import annotations

import msgspec

from robust_run.prefetch.types import SourceCounts


class FetchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a fetcher has done so far; the fields are those of `types.Status`."""

    reads: int
    waited: int
    waited_s: float
    failed: int
    hot_total: int
    hot_left: int
    given_up: int
    background: bool
    passing_through: bool
    repaired: int
    sources: tuple[SourceCounts, ...]
    problems: tuple[str, ...]
