"""Metrics of the job as it is now: its phase, its ranks and nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from robust_run.launcher.core.state import Phase
from robust_run.launcher.operator.gauges.facts import GaugeFacts
from robust_run.report.metrics import MetricFamily, Sample, number


def _info(facts: GaugeFacts) -> MetricFamily:
    job = facts.job
    return MetricFamily(
        name="info",
        kind="gauge",
        about="The job that this controller runs; always 1.",
        labels=("run_id", "script", "version"),
        samples=(Sample((job.run_id, job.script, job.version), 1),),
    )


def _up(facts: GaugeFacts) -> MetricFamily:
    return number(
        "running", "gauge", "Whether ranks train: 1 from their start to their end.", facts.job.phase == "running"
    )


def _started(facts: GaugeFacts) -> MetricFamily:
    return number("started_timestamp_seconds", "gauge", "When the job started.", facts.job.started_unix_s)


def _attempt(facts: GaugeFacts) -> MetricFamily:
    return number("attempt", "gauge", "Number of the newest attempt; -1 before the first.", facts.job.attempt)


def _ranks(facts: GaugeFacts) -> MetricFamily:
    return number("ranks", "gauge", "Ranks of the newest attempt.", facts.job.world_size)


def _nodes(facts: GaugeFacts) -> MetricFamily:
    job = facts.job
    counted = {
        "active": job.nodes_active,
        "standby": job.nodes_standby,
        "evicted": job.nodes_evicted,
        "lost": job.nodes_lost,
    }
    return MetricFamily(
        name="nodes",
        kind="gauge",
        about="Nodes by what they are to the job.",
        labels=("standing",),
        samples=tuple(Sample((standing,), count) for standing, count in counted.items()),
    )


def _phase(facts: GaugeFacts) -> MetricFamily:
    return MetricFamily(
        name="phase",
        kind="gauge",
        about="What the job does now: 1 for its phase, 0 for all others.",
        labels=("phase",),
        samples=tuple(Sample((phase,), facts.job.phase == phase) for phase in get_args(Phase)),
    )


def _needed(facts: GaugeFacts) -> MetricFamily:
    return number("nodes_needed", "gauge", "Nodes without which no attempt begins.", facts.job.nodes_needed)


def _silence(facts: GaugeFacts) -> MetricFamily:
    about = "Longest time since a sign of life of any node that is connected."
    if facts.silence_s is None:
        return MetricFamily(name="heartbeat_silence_seconds", kind="gauge", about=about)
    return number("heartbeat_silence_seconds", "gauge", about, facts.silence_s)


def _term(facts: GaugeFacts) -> MetricFamily:
    return number(
        "controller_term",
        "gauge",
        "Number of the controller: 1, and one more each time another took over.",
        facts.job.term,
    )


def _fruitless(facts: GaugeFacts) -> MetricFamily:
    return number(
        "restarts_without_progress",
        "gauge",
        "Restarts in a row that brought no progress; at robust_run_restarts_allowed the job ends.",
        facts.restarts_without_progress,
    )


def _allowed(facts: GaugeFacts) -> MetricFamily:
    return number("restarts_allowed", "gauge", "As --max-restarts says.", facts.max_restarts)


def _notices(facts: GaugeFacts) -> MetricFamily:
    return MetricFamily(
        name="notifications_total",
        kind="counter",
        about="Notifications (--notify) by outcome: sent, failed, suppressed by the rate limit.",
        labels=("outcome",),
        samples=tuple(Sample((outcome,), count) for outcome, count in sorted(facts.notices.items())),
    )


SOURCES: tuple[Callable[[GaugeFacts], MetricFamily], ...] = (
    _info,
    _up,
    _phase,
    _started,
    _attempt,
    _ranks,
    _nodes,
    _needed,
    _silence,
    _term,
    _fruitless,
    _allowed,
    _notices,
)
