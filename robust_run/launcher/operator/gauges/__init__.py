"""What `/metrics` says of a job. Pure.

One function a family, listed in `SOURCES`: a new metric is a function more, and a line in docs/metrics.md. Labels come from
closed lists or are bounded (`tracer.nccl.rates`); none names a rank, or a node unless the scraper asks for the slowest few.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.operator.gauges import code, course, job, nccl, steps
from robust_run.launcher.operator.gauges.facts import GaugeFacts, NewestCheckpoint
from robust_run.launcher.operator.gauges.steps import MOST_NAMED
from robust_run.report.metrics import MetricFamily

__all__ = ["MOST_NAMED", "SOURCES", "GaugeFacts", "NewestCheckpoint", "families"]

SOURCES: tuple[Callable[[GaugeFacts], MetricFamily], ...] = (
    *job.SOURCES,
    *course.SOURCES,
    *steps.SOURCES,
    *code.SOURCES,
    *nccl.SOURCES,
)


def families(facts: GaugeFacts) -> list[MetricFamily]:
    """Return all metrics of a job; a family without a number is left out."""
    return [family for source in SOURCES if (family := source(facts)).samples or family.buckets]
