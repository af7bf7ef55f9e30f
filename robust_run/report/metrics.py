"""Metrics in Prometheus' words: families of numbers, and their text. What they say is gathered where it is known.

Names and units follow Prometheus' conventions: `robust_run_` first, the base unit (seconds, bytes) and, of counters, `_total`
last. Labels have few values, always the same ones, and never a rank: a job of 10,000 ranks has as many lines as one of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric


from bisect import bisect_left

PREFIX = "robust_run_"


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One number of a family."""

    labels: tuple[str, ...]
    """Values of the family's labels, in their order."""
    value: float


class MetricFamily(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one name."""

    name: str
    """Without `PREFIX`; of a counter, with `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    """counter: only grows while one controller runs. gauge: goes up and down. histogram: how numbers spread (`buckets`)."""
    about: str
    """For people. One line."""
    labels: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    buckets: tuple[tuple[str, int], ...] = ()
    """Of a histogram: upper ends, rising to `+Inf`, and how many numbers are at most as large; empty: not known yet."""
    total: float = 0.0
    """Of a histogram: the sum of its numbers."""


def number(name: str, kind: Literal["counter", "gauge"], about: str, value: float) -> MetricFamily:
    """Return a family of one number."""
    return MetricFamily(name=name, kind=kind, about=about, samples=(Sample((), value),))


def spread_of(name: str, about: str, spread: Spread | None) -> MetricFamily:
    """Return a family of numbers that spread; without any where there is no spread."""
    if spread is None:
        return MetricFamily(name=name, kind="histogram", about=about)
    return MetricFamily(
        name=name, kind="histogram", about=about, buckets=tuple(spread.cumulative()), total=spread.total
    )


def exposition(families: Sequence[MetricFamily], accept: str = "") -> tuple[bytes, str]:
    """Return the text of families and its content type, in the format that `accept` (an HTTP header) asks for.

    Raises ImportError without prometheus-client, which is imported here alone: most jobs are never asked.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    class _Collector:
        """Hands families to prometheus-client."""

        def collect(self) -> Iterator[Metric]:
            return (_metric(family) for family in families)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _metric(family: MetricFamily) -> Metric:
    """Return a family as prometheus-client knows it."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if family.kind == "histogram":
        spread = HistogramMetricFamily(PREFIX + family.name, family.about)
        spread.add_metric((), [(end, float(count)) for end, count in family.buckets], family.total)
        return spread
    made: type[CounterMetricFamily | GaugeMetricFamily]
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = made(PREFIX + family.name, family.about, labels=family.labels)
    for sample in family.samples:
        metric.add_metric(sample.labels, sample.value)
    return metric


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
