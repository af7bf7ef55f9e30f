"""Choice of the source that a request goes to: of those that offer its blocks, the one that failed at them least. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from robust_run.prefetch.rules.flights import FetchJob
from robust_run.prefetch.rules.source_health import Health
from robust_run.prefetch.rules.types import Priority

#: `BlockSource.offers` of all sources: (source, start_block, count, priority) → seconds to wait, or None.
Offers = Callable[[int, int, int, Priority], "float | None"]


class SourceChoice:
    """Chooses among the sources of one image."""

    def __init__(self, offers: Offers, health: Health, tries: int) -> None:
        """`tries`: how often a source may fail at a block for good before it is not asked for it any more."""
        self._offers, self._health, self._tries = offers, health, tries
        self._sources = len(health.counts())
        self.later_s = float("inf")
        """When to choose again at the latest, as the last choice found it; infinite: at no time in particular."""

    def choose(
        self,
        start: int,
        count: int,
        priority: Priority,
        now_s: float,
        refusals: dict[int, int] | None = None,
        flights: Sequence[FetchJob] = (),
    ) -> int | None:
        """Return the source to ask: of those that offer it and may be asked now, the one that failed at it least often.

        None also where one that lied could be asked now, and an honest one later.
        """
        best: tuple[int, int] | None = None
        honest_later = False
        self.later_s = float("inf")
        for source in range(self._sources):
            wait_s = self._offers(source, start, count, priority)
            if wait_s is None:
                continue
            shunned = self._health.is_shunned(source, now_s)
            from_s = max(now_s + wait_s if wait_s > 0 else 0.0, self._health.quiet_until_s(source))
            if from_s > now_s:
                self.later_s = min(self.later_s, from_s)
                honest_later |= not shunned
                continue
            refused = (refusals or {}).get(source, 0)
            rank = refused + 100 * any(job.source == source for job in flights) + 10_000 * shunned
            if best is None or rank < best[0]:
                best = (rank, source)
        return None if best is None or (best[0] >= 10_000 and honest_later) else best[1]

    def all_quiet(self, now_s: float) -> bool:
        """Whether no source may be asked now."""
        return all(self._health.quiet_until_s(source) > now_s for source in range(self._sources))

    def is_hopeless(self, block: int, refusals: dict[int, int]) -> bool:
        """Whether every source that has the block, or may have it soon, failed at it for good often enough."""
        return all(
            refusals.get(source, 0) >= self._tries
            for source in range(self._sources)
            if self._offers(source, block, 1, Priority.DEMAND) is not None
        )
