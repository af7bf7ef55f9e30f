"""Metrics of optimizer steps and checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.operator.gauges.facts import GaugeFacts
from robust_run.report.metrics import MetricFamily, Sample, number, spread_of

#: Nodes that may be named at most, however many the scraper asks for.
MOST_NAMED = 100


def _steps(facts: GaugeFacts) -> MetricFamily:
    about = "Optimizer steps of all attempts, most of any rank each; calls of several optimizers all count."
    if facts.course is None:
        return MetricFamily(name="steps_total", kind="counter", about=about)
    known = {each.number: each.steps or 0 for each in facts.course.attempts}
    running = facts.job.step or 0
    here = max(running - known.get(facts.job.attempt, 0), 0)
    return number("steps_total", "counter", about, facts.course.steps() + here)


def _step(facts: GaugeFacts) -> MetricFamily:
    return _known("step", "Newest optimizer step of the newest attempt.", facts.job.step)


def _newest_step(facts: GaugeFacts) -> MetricFamily:
    age_s = facts.job.step_age_s
    return _known(
        "last_step_timestamp_seconds",
        "When that step was made.",
        None if age_s is None else facts.job.now_unix_s - age_s,
    )


def _step_seconds(facts: GaugeFacts) -> MetricFamily:
    return spread_of(
        "step_seconds",
        "Length of steps, as the first rank sees them; of steps shorter than 0.16 s a sample of 64 in a round.",
        facts.steps.spread if facts.steps is not None else None,
    )


def _slowest(facts: GaugeFacts) -> MetricFamily:
    from robust_run.launcher.operator.views.live import slowest

    most = min(facts.name_nodes, MOST_NAMED)
    pairs = slowest(facts.steps.nodes, most) if facts.steps is not None and most > 0 else []
    return MetricFamily(
        name="node_step_own_seconds",
        kind="gauge",
        about="How long the slowest rank of a node works for a step, without what it waits; only with ?nodes=K, the K slowest.",
        labels=("node",),
        samples=tuple(Sample((name,), own_s) for name, own_s in pairs),
    )


def _loader(facts: GaugeFacts) -> MetricFamily:
    late = [
        (name, *one.late) for name, one in (facts.steps.nodes if facts.steps is not None else {}).items() if one.late
    ]
    late.sort(key=lambda row: (-row[2], row[0]))
    return MetricFamily(
        name="node_step_data_wait_seconds",
        kind="gauge",
        about="What the rank of a node that waits longest for its DataLoader waits in a step; only with ?nodes=K, the K longest.",
        labels=("node", "rank"),
        samples=tuple(
            Sample((name, str(rank)), wait_s)
            for name, rank, wait_s in late[: max(min(facts.name_nodes, MOST_NAMED), 0)]
        ),
    )


def _checkpoint(facts: GaugeFacts) -> MetricFamily:
    return _known(
        "checkpoint_timestamp_seconds",
        "When the newest checkpoint under --ckpt-dir was written.",
        facts.checkpoint.written_unix_s if facts.checkpoint is not None else None,
    )


def _checkpoint_step(facts: GaugeFacts) -> MetricFamily:
    return _known(
        "checkpoint_step", "The step that it is of.", facts.checkpoint.step if facts.checkpoint is not None else None
    )


def _known(name: str, about: str, value: float | None) -> MetricFamily:
    return MetricFamily(name=name, kind="gauge", about=about) if value is None else number(name, "gauge", about, value)


SOURCES: tuple[Callable[[GaugeFacts], MetricFamily], ...] = (
    _steps,
    _step,
    _newest_step,
    _step_seconds,
    _slowest,
    _loader,
    _checkpoint,
    _checkpoint_step,
)
