"""Live view: the job, its course, its nodes with the odd ones first, what happens now, what to do about it. Pure.

A screen shows some tens of nodes, so that is all that is asked for: a job of 10,000 nodes is sorted where it is known, and
travels in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from robust_run.launcher.controller.steps import NodeSteps, StepBook
from robust_run.launcher.operator.views.advice import findings_of
from robust_run.launcher.operator.views.course import Course
from robust_run.launcher.operator.views.status_types import AttemptView, JobView, LiveNode, NodesView
from robust_run.launcher.records.folds.attempts import AttemptCourse
from robust_run.report.types import Incident

#: Attempts that a JobView names, nodes and incidents that one answer holds at most.
NAMED_ATTEMPTS = 8
MOST_NODES = 500
MOST_INCIDENTS = 50

#: From here on a node's own time for a step is odd: it is shown among the first, and nothing else follows from it.
ODD_RATIO = 1.15
#: Heartbeats come every second: from here on a node's silence is odd.
ODD_SILENCE_S = 2.0


#: Places of nodes that are neither silent nor slow: those that are gone are the odder ones.
_GROUPS = {"lost": 2, "evicted": 2, "active": 3, "standby": 4}


class LiveIncident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident in a line."""

    number: int
    attempt: int
    kind: str
    action: str
    sentence: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    onset_unix_s: float
    detected_unix_s: float
    resumed_unix_s: float | None = None


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one moment, for a screen that shows it again and again."""

    schema: int = 1
    job: JobView
    findings: tuple[str, ...] = ()
    """What is not as it should be, though it may be no failure."""
    incidents: tuple[LiveIncident, ...] = ()
    """Newest first."""
    incidents_total: int = 0
    nodes: tuple[LiveNode, ...] = ()
    nodes_first: int = 0
    """Place of the first of these in the whole list."""
    nodes_total: int = 0
    nodes_odd: int = 0


def with_course(
    job: JobView,
    course: Course,
    book: StepBook | None = None,
    now_s: float | None = None,
    *,
    starts: Mapping[int, float] | None = None,
) -> JobView:
    """Return a job's status with its course. `book` and `now_s` (of the controller's monotonic clock): while it lives.

    `starts`: by attempt, after how many seconds it made its first step, as measured on its nodes (`StartupPhases.totals`); of
    others the journal tells when the first rank had made one.
    """
    until_s = course.until_s(job.now_unix_s, alive=job.alive)
    newest = book if book is not None and book.attempt == job.attempt else None
    here = newest if newest is not None and newest.step else None
    since_s = newest.waiting_since_s if newest is not None else None
    last = course.attempts[-1] if course.attempts and course.attempts[-1].number == job.attempt else None
    stands_since_s = last.stands_since_s if last is not None else None
    return msgspec.structs.replace(
        job,
        attempts=tuple(
            _attempt(each, here, job, startup_s(each, course, starts or {}))
            for each in list(course.attempts)[-NAMED_ATTEMPTS:]
        ),
        ettr=course.ettr(until_s),
        ettr_hour=course.ettr_hour(until_s),
        step=here.step if here else None,
        step_s=here.step_s if here else None,
        step_age_s=max(now_s - here.at_s, 0.0) if here and here.at_s is not None and now_s is not None else None,
        waiting_s=max(now_s - since_s, 0.0) if since_s is not None and now_s is not None else None,
        stands_still_s=max(until_s - stands_since_s, 0.0) if stands_since_s is not None else None,
    )


def startup_s(each: AttemptCourse, course: Course, starts: Mapping[int, float]) -> float | None:
    """Return after how long an attempt made its first step: the first since the job was started, others since their order."""
    if each.first_step_s is None:
        return None
    began_s = course.began_s if each.number == 0 and course.began_s is not None else each.began_s
    return starts.get(each.number, max(each.first_step_s - began_s, 0.0))


def _attempt(each: AttemptCourse, book: StepBook | None, job: JobView, started_s: float | None) -> AttemptView:
    steps = book.step if book is not None and each.number == book.attempt and not each.steps else each.steps
    ended_s = each.told_s if each.told_s is not None else each.ended_s
    if ended_s is None and each.number < job.attempt:
        ended_s = each.onset_s
    return AttemptView(
        number=each.number,
        began_unix_s=each.began_s,
        ranks=each.ranks,
        nodes=each.nodes,
        startup_s=started_s,
        ended_unix_s=ended_s,
        steps=steps or None,
        why=each.why,
    )


def live_view(
    job: JobView,
    rows: Sequence[LiveNode],
    incidents: Sequence[Incident],
    *,
    first: int = 0,
    count: int = 100,
) -> LiveView:
    """Return what is shown of a job: `count` nodes from place `first` on. `rows`: see `live_nodes`."""
    first = max(min(first, len(rows) - 1), 0)
    return LiveView(
        job=job,
        findings=findings_of(job, rows),
        incidents=tuple(_incident(each) for each in list(incidents)[: -MOST_INCIDENTS - 1 : -1]),
        incidents_total=len(incidents),
        nodes=tuple(rows[first : first + min(count, MOST_NODES)]),
        nodes_first=first,
        nodes_total=len(rows),
        nodes_odd=sum(bool(row.odd) for row in rows),
    )


def live_nodes(nodes: NodesView, steps: Mapping[str, NodeSteps]) -> list[LiveNode]:
    """Return all nodes, the odd ones first: silent, slow, lost or evicted; then those at work by rank, then the others."""
    active = {node.name for node in nodes.nodes if node.standing == "active"}
    usual_s = _median(each.own_s for name, each in steps.items() if name in active and each.own_s is not None)
    rows = []
    for place, node in enumerate(nodes.nodes):
        said = steps.get(node.name) if node.standing == "active" else None
        own_s = said.own_s if said else None
        slow = own_s / usual_s if own_s is not None and usual_s and len(active) > 1 else None
        silent = node.standing == "active" and (node.silent_s or 0.0) >= ODD_SILENCE_S
        odd, order = "", (_GROUPS.get(node.standing, 5), 0.0, place)
        if silent:
            odd, order = f"silent for {node.silent_s:.1f} s", (0, -(node.silent_s or 0.0), place)
        elif slow is not None and slow >= ODD_RATIO:
            odd, order = f"{slow:.2f} times the usual work", (1, -slow, place)
        rows.append(
            (
                order,
                LiveNode(
                    name=node.name,
                    standing=node.standing,
                    ranks=node.ranks,
                    silent_s=node.silent_s,
                    step=said.step if said else None,
                    own_s=own_s,
                    slow=slow,
                    rank=said.rank if said else None,
                    odd=odd or node.reason,
                ),
            )
        )
    rows.sort(key=lambda row: row[0])
    return [row for _, row in rows]


def slowest(steps: Mapping[str, NodeSteps], most: int) -> list[tuple[str, float]]:
    """Return the nodes whose own time for a step is longest, and that time; at most so many."""
    key: Callable[[tuple[str, float]], tuple[float, str]] = lambda pair: (-pair[1], pair[0])  # noqa: E731
    return sorted(((name, each.own_s) for name, each in steps.items() if each.own_s is not None), key=key)[:most]


def _incident(incident: Incident) -> LiveIncident:
    return LiveIncident(
        number=incident.id,
        attempt=incident.attempt,
        kind=incident.verdict.kind,
        action=incident.action.name,
        sentence=incident.verdict.sentence,
        reason=incident.action.reason,
        nodes=incident.verdict.nodes[:8],
        onset_unix_s=incident.onset_s,
        detected_unix_s=incident.detected_s,
        resumed_unix_s=incident.resumed_s,
    )


def _median(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
