"""What `/metrics` says of a job. Pure.

One function a family, listed in `SOURCES`: a new metric is a function more. Labels come from closed lists or are bounded
(`tracer.nccl.rates`), and none names a rank or a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from robust_run.launcher.api.views import JobView
from robust_run.report.metrics import Family, Sample, number
from robust_run.report.types import Incident
from robust_run.tracer.nccl.types import CommRate


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that metrics are made of."""

    job: JobView
    incidents: Sequence[Incident] = ()
    nccl: Sequence[CommRate] = ()
    """What NCCL completed since this controller began."""


def families(facts: Facts) -> list[Family]:
    """Return all metrics of a job; a family without a number is left out."""
    return [family for source in SOURCES if (family := source(facts)).samples]


# --- the job ---


def _info(facts: Facts) -> Family:
    job = facts.job
    return Family(
        name="info",
        kind="gauge",
        about="The job that this controller runs; always 1.",
        labels=("run_id", "script", "version"),
        samples=(Sample((job.run_id, job.script, job.version), 1),),
    )


def _up(facts: Facts) -> Family:
    return number(
        "running", "gauge", "Whether ranks train: 1 from their start to their end.", facts.job.phase == "running"
    )


def _started(facts: Facts) -> Family:
    return number("started_timestamp_seconds", "gauge", "When the job started.", facts.job.started_unix_s)


def _attempt(facts: Facts) -> Family:
    return number("attempt", "gauge", "Number of the newest attempt; -1 before the first.", facts.job.attempt)


def _attempts(facts: Facts) -> Family:
    return number("attempts_total", "counter", "Attempts begun.", facts.job.attempt + 1)


def _ranks(facts: Facts) -> Family:
    return number("ranks", "gauge", "Ranks of the newest attempt.", facts.job.world_size)


def _nodes(facts: Facts) -> Family:
    job = facts.job
    counted = {
        "active": job.nodes_active,
        "standby": job.nodes_standby,
        "evicted": job.nodes_evicted,
        "lost": job.nodes_lost,
    }
    return Family(
        name="nodes",
        kind="gauge",
        about="Nodes by what they are to the job.",
        labels=("standing",),
        samples=tuple(Sample((standing,), count) for standing, count in counted.items()),
    )


def _incidents(facts: Facts) -> Family:
    counted = Counter((incident.verdict.kind, incident.action.name) for incident in facts.incidents)
    return Family(
        name="incidents_total",
        kind="counter",
        about="Failures and stalls by kind of verdict and by what was done about them.",
        labels=("kind", "action"),
        samples=tuple(Sample(labels, count) for labels, count in sorted(counted.items())),
    )


# --- what NCCL does ---


def _by_communicator(name: str, about: str, value: Callable[[CommRate], float]) -> Callable[[Facts], Family]:
    """Return the source of a counter that has a number for each communicator."""

    def source(facts: Facts) -> Family:
        return Family(
            name=name,
            kind="counter",
            about=about,
            labels=("communicator",),
            samples=tuple(Sample((rate.name,), value(rate)) for rate in facts.nccl),
        )

    return source


SOURCES: tuple[Callable[[Facts], Family], ...] = (
    _info,
    _up,
    _started,
    _attempt,
    _attempts,
    _ranks,
    _nodes,
    _incidents,
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
