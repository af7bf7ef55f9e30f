"""The blocks that reads wait for: since when, what failed so far, and which are given up. Pure: time comes in."""

from __future__ import annotations

from collections.abc import ItemsView, Sequence

import msgspec

from robust_run.prefetch.rules.source_choice import SourceChoice
from robust_run.prefetch.rules.source_health import SourcePatience


class BlockDemand(msgspec.Struct):
    """A block that reads wait for."""

    since_s: float
    limit_s: float
    reason: str = ""
    """The latest failure."""
    refusals: dict[int, int] = {}
    """How often each source has failed at it for good."""


class Demands:
    """All of one image. Not safe for threads: its owner holds a lock."""

    def __init__(self, patience: SourcePatience, choice: SourceChoice) -> None:
        self._patience, self._choice = patience, choice
        self._by_block: dict[int, BlockDemand] = {}
        self._why = ""

    def __bool__(self) -> bool:
        return bool(self._by_block)

    def items(self) -> ItemsView[int, BlockDemand]:
        """Return them, those that were made first first."""
        return self._by_block.items()

    def add(self, block: int, now_s: float) -> str:
        """Want a block for a read. Return why it cannot be had, if that was found a moment ago."""
        refusal = self._patience.refusal(block, now_s)
        if block not in self._by_block and not refusal:
            self._by_block[block] = BlockDemand(now_s, self._patience.limit_s())
        return refusal

    def begin_anew(self, now_s: float) -> None:
        """Have all that is wanted wait as long as if it were wanted now."""
        for demand in self._by_block.values():
            demand.since_s, demand.limit_s = now_s, self._patience.limit_s()

    def satisfied(self, block: int) -> None:
        """No read waits for a block any more."""
        self._by_block.pop(block, None)

    def failed(
        self, blocks: Sequence[int], source: int, reason: str, now_s: float, *, final: bool, is_wrong: bool
    ) -> list[tuple[int, str]]:
        """Note that a source did not give blocks; `final`: and will not, `is_wrong`: gave wrong ones. Return those given up."""
        lost = []
        self._why = reason if blocks else ""
        for block in blocks:
            demand = self._by_block.get(block)
            if demand is not None:
                demand.reason = reason
                if final:
                    demand.refusals = {**demand.refusals, source: demand.refusals.get(source, 0) + 1}
                    is_out = is_wrong or self._patience.is_out(demand.since_s, now_s)
                    if is_out and self._choice.is_hopeless(block, demand.refusals):
                        lost.append((block, reason))
        for block, _reason in lost:
            del self._by_block[block]
            self._patience.gave_up(block, reason, now_s, late=False)
        return lost

    def slow(self, now_s: float) -> str:
        """See `SourcePatience.slow`."""
        return self._patience.slow(self._by_block, now_s)

    def late(self, now_s: float) -> list[tuple[int, str]]:
        """Return and forget those that have waited for `read_limit_s`, with the latest reason."""
        late = {block: each for block, each in self._by_block.items() if now_s - each.since_s >= each.limit_s}
        lost = []
        for block, each in late.items():
            del self._by_block[block]
            lost.append((block, each.reason or self._why or f"no source could be asked within {each.limit_s:g} s"))
            self._patience.gave_up(*lost[-1], now_s, late=True)
        return lost
