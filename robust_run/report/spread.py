"""How numbers spread: counts by size, as a histogram of Prometheus holds them. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Spread:
    """Counts of numbers between fixed edges, and their sum. What is not finite, or below 0, is not counted."""

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges`: upper ends of the buckets, rising; a last one without an end is added."""
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a number."""
        if 0 <= value < float("inf"):
            self.counts[bisect_left(self.edges, value)] += 1
            self.total += value

    @property
    def count(self) -> int:
        """How many numbers were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return the buckets as Prometheus wants them: the upper end, and how many numbers are at most as large."""
        found, so_far = [], 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            so_far += count
            found.append(("+Inf" if edge == float("inf") else f"{edge:g}", so_far))
        return found
