"""Metrics of what NCCL does. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.operator.gauges.facts import GaugeFacts
from robust_run.report.metrics import MetricFamily, Sample
from robust_run.tracer.nccl.types import CommRate


def _by_communicator(name: str, about: str, value: Callable[[CommRate], float]) -> Callable[[GaugeFacts], MetricFamily]:
    """Return the source of a counter that has a number for each communicator."""

    def source(facts: GaugeFacts) -> MetricFamily:
        return MetricFamily(
            name=name,
            kind="counter",
            about=about,
            labels=("communicator",),
            samples=tuple(Sample((rate.name,), value(rate)) for rate in facts.nccl),
        )

    return source


SOURCES: tuple[Callable[[GaugeFacts], MetricFamily], ...] = (
    _by_communicator(
        "nccl_operations_total",
        "Operations that NCCL completed, added up over all ranks.",
        lambda rate: rate.operations,
    ),
    _by_communicator(
        "nccl_sent_bytes_total",
        "Bytes that completed operations sent over the network, added up over all ranks.",
        lambda rate: rate.sent_bytes,
    ),
    _by_communicator(
        "nccl_received_bytes_total",
        "Bytes that completed operations received over the network, added up over all ranks.",
        lambda rate: rate.received_bytes,
    ),
    _by_communicator(
        "nccl_operation_seconds_total",
        "Time that completed operations took on the network, added up over operations and ranks.",
        lambda rate: rate.seconds,
    ),
)
