"""Metrics of a job's course: attempts, incidents, how fast failures were seen and mended, how much time was training. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from robust_run.launcher.operator.gauges.facts import GaugeFacts
from robust_run.launcher.operator.views.course import START_EDGES_S, Course
from robust_run.report.metrics import MetricFamily, Sample, Spread, number, spread_of

#: Seconds. What is seen at once (an exit) takes milliseconds, a hang seconds, a slow node minutes.
DETECTION_EDGES_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
RUNGS = ("promote", "fork", "spawn")
EVICTORS = ("operator", "rule", "list")


def _attempts(facts: GaugeFacts) -> MetricFamily:
    return number("attempts_total", "counter", "Attempts begun.", facts.job.attempt + 1)


def _attempt_started(facts: GaugeFacts) -> MetricFamily:
    about = "When the workers of the newest attempt were told to start."
    attempts = facts.job.attempts
    if not attempts:
        return MetricFamily(name="attempt_started_timestamp_seconds", kind="gauge", about=about)
    return number("attempt_started_timestamp_seconds", "gauge", about, attempts[-1].began_unix_s)


def _restarts(facts: GaugeFacts) -> MetricFamily:
    return _closed(
        "restarts_total",
        "Attempts after the first, by the slowest way any of their workers was started.",
        "rung",
        {rung: facts.course.restarts[rung] for rung in RUNGS} if facts.course is not None else None,
    )


def _worker_starts(facts: GaugeFacts) -> MetricFamily:
    return _closed(
        "worker_starts_total",
        "Workers that were started, by the way.",
        "rung",
        {rung: facts.course.worker_starts[rung] for rung in RUNGS} if facts.course is not None else None,
    )


def _incidents(facts: GaugeFacts) -> MetricFamily:
    counted = Counter((incident.verdict.kind, incident.action.name) for incident in facts.incidents)
    return MetricFamily(
        name="incidents_total",
        kind="counter",
        about="Failures and stalls by kind of verdict and by what was done about them.",
        labels=("kind", "action"),
        samples=tuple(Sample(labels, count) for labels, count in sorted(counted.items())),
    )


def _newest_incident(facts: GaugeFacts) -> MetricFamily:
    about = "When the newest incident was detected."
    if not facts.incidents:
        return MetricFamily(name="last_incident_timestamp_seconds", kind="gauge", about=about)
    return number("last_incident_timestamp_seconds", "gauge", about, facts.incidents[-1].detected_s)


def _detection(facts: GaugeFacts) -> MetricFamily:
    lags = (each.detected_s - each.onset_s for each in facts.incidents)
    return spread_of(
        "detection_seconds", "From the onset of an incident until it was detected.", _spread(DETECTION_EDGES_S, lags)
    )


def _decision(facts: GaugeFacts) -> MetricFamily:
    lags = (each.decided_s - each.detected_s for each in facts.incidents)
    return spread_of(
        "decision_seconds", "From the detection of an incident until its verdict.", _spread(DETECTION_EDGES_S, lags)
    )


def _recovery(facts: GaugeFacts) -> MetricFamily:
    told = [each for each in facts.incidents if each.action.name != "report"]
    lags = (each.resumed_s - each.onset_s for each in told if each.resumed_s is not None)
    return spread_of(
        "recovery_seconds",
        "From the onset of an incident until the first step of the next attempt.",
        _spread(START_EDGES_S, lags),
    )


def _startup(facts: GaugeFacts) -> MetricFamily:
    return spread_of(
        "startup_seconds",
        "From the order to start workers to the first step, of the attempts that made one.",
        facts.course.starts_s if facts.course is not None else None,
    )


def _phases(facts: GaugeFacts) -> MetricFamily:
    return MetricFamily(
        name="startup_phase_seconds",
        kind="gauge",
        about="Start-up of the newest attempt by phase, of the node or rank that took longest.",
        labels=("phase",),
        samples=tuple(Sample((phase,), seconds) for phase, seconds in sorted(facts.phases.items())),
    )


def _evictions(facts: GaugeFacts) -> MetricFamily:
    return _closed(
        "evictions_total",
        "Nodes taken out of the job, by whom: an operator, a rule, or the list of --evict-list.",
        "by",
        {by: facts.course.evictions[by] for by in EVICTORS} if facts.course is not None else None,
    )


def _lines(name: str, about: str, *kinds: str) -> Callable[[GaugeFacts], MetricFamily]:
    """Return the source of a counter of lines of the journal."""

    def source(facts: GaugeFacts) -> MetricFamily:
        if facts.course is None:
            return MetricFamily(name=name, kind="counter", about=about)
        return number(name, "counter", about, sum(facts.course.counted[kind] for kind in kinds))

    return source


def _trained(facts: GaugeFacts) -> MetricFamily:
    about = "Time from first steps until attempts were told to end; what was in vain of it is counted apart."
    if facts.course is None or facts.job.ettr is None:
        return MetricFamily(name="training_seconds_total", kind="counter", about=about)
    return number("training_seconds_total", "counter", about, facts.course.ran_s(_until_s(facts, facts.course)))


def _in_vain(facts: GaugeFacts) -> MetricFamily:
    """Counters never fall: a failure is known only after it began, so what it cost is not taken off but counted here."""
    about = "What of robust_run_training_seconds_total was in vain: after the onset of a failure, made again, or in a standstill."
    if facts.course is None or facts.job.ettr is None:
        return MetricFamily(name="training_in_vain_seconds_total", kind="counter", about=about)
    until_s = _until_s(facts, facts.course)
    lost_s = max(facts.course.ran_s(until_s) - facts.course.effective_s(until_s), 0.0)
    return number("training_in_vain_seconds_total", "counter", about, lost_s)


def _until_s(facts: GaugeFacts, course: Course) -> float:
    return course.until_s(facts.job.now_unix_s, alive=facts.job.alive)


def _ettr(facts: GaugeFacts) -> MetricFamily:
    return _known(
        "ettr_ratio", "Share of the time since the job started that was training whose steps survived.", facts.job.ettr
    )


def _ettr_hour(facts: GaugeFacts) -> MetricFamily:
    return _known("ettr_hour_ratio", "The same share of the last hour.", facts.job.ettr_hour)


def _known(name: str, about: str, value: float | None) -> MetricFamily:
    return MetricFamily(name=name, kind="gauge", about=about) if value is None else number(name, "gauge", about, value)


def _closed(name: str, about: str, label: str, counts: dict[str, int] | None) -> MetricFamily:
    """Return a counter whose label has a closed list of values, all of which are always there."""
    samples = tuple(Sample((value,), count) for value, count in counts.items()) if counts is not None else ()
    return MetricFamily(name=name, kind="counter", about=about, labels=(label,), samples=samples)


def _spread(edges: tuple[float, ...], values: Iterable[float]) -> Spread:
    spread = Spread(edges)
    for value in values:
        spread.add(max(value, 0.0))
    return spread


SOURCES: tuple[Callable[[GaugeFacts], MetricFamily], ...] = (
    _attempts,
    _attempt_started,
    _restarts,
    _worker_starts,
    _incidents,
    _newest_incident,
    _detection,
    _decision,
    _recovery,
    _startup,
    _phases,
    _evictions,
    _lines("readmissions_total", "Evicted nodes that were allowed again.", "node_readmitted"),
    _lines("nodes_lost_total", "Nodes that fell silent.", "node_lost"),
    _lines("nodes_left_total", "Nodes that left in good order.", "node_left"),
    _lines(
        "hang_suspicions_total",
        "Waits that were longer than usual, so that all ranks were looked at.",
        "hang_suspected",
    ),
    _trained,
    _in_vain,
    _ettr,
    _ettr_hour,
)
