"""Metrics of the versions of a job's code. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.operator.gauges.facts import GaugeFacts
from robust_run.report.metrics import MetricFamily, Sample, number


def _info(facts: GaugeFacts) -> MetricFamily:
    record = facts.code
    return MetricFamily(
        name="code_info",
        kind="gauge",
        about="The version of the code that the newest attempt runs, and what is thought of it; always 1.",
        labels=("version", "commit", "fate"),
        samples=()
        if record is None
        else (Sample((str(record.version.number), record.version.commit[:12], record.fate), 1),),
    )


def _version(facts: GaugeFacts) -> MetricFamily:
    about = "Number of the version that runs; a fall is a roll-back."
    if facts.code is None:
        return MetricFamily(name="code_version", kind="gauge", about=about)
    return number("code_version", "gauge", about, facts.code.version.number)


def _counted(name: str, about: str, kind: str) -> Callable[[GaugeFacts], MetricFamily]:
    def source(facts: GaugeFacts) -> MetricFamily:
        if facts.course is None:
            return MetricFamily(name=name, kind="counter", about=about)
        return number(name, "counter", about, facts.course.counted[kind])

    return source


SOURCES: tuple[Callable[[GaugeFacts], MetricFamily], ...] = (
    _info,
    _version,
    _counted("code_updates_total", "Versions that were staged (robust update).", "update_staged"),
    _counted("code_updates_refused_total", "Updates that were not taken.", "update_refused"),
)
