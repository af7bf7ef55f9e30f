"""What `/metrics` says of a job. Pure.

One function a family, listed in `SOURCES`: a new metric is a function more, and a line in docs/metrics.md. Labels come from
closed lists or are bounded (`tracer.nccl.rates`); none names a rank, or a node unless the scraper asks for the slowest few.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.operator.gauges import code, course, job, nccl, steps
from robust_run.launcher.operator.gauges.facts import Checkpoint, Facts
from robust_run.launcher.operator.gauges.steps import MOST_NAMED
from robust_run.report.metrics import Family

__all__ = ["MOST_NAMED", "SOURCES", "Checkpoint", "Facts", "families"]

SOURCES: tuple[Callable[[Facts], Family], ...] = (
    *job.SOURCES,
    *course.SOURCES,
    *steps.SOURCES,
    *code.SOURCES,
    *nccl.SOURCES,
)


def families(facts: Facts) -> list[Family]:
    """Return all metrics of a job; a family without a number is left out."""
    return [family for source in SOURCES if (family := source(facts)).samples or family.buckets]
