"""The course of an incident, and what it cost: moments, the intervals between them by name, steps, seconds. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from robust_run.report.effective import Standstill, stopped_s
from robust_run.report.pages.types import AttemptTimes, IncidentCost, Milestone, ReportedCheckpoint
from robust_run.report.types import Incident

#: What an interval is called that ends with a milestone, and what happens in it.
INTERVALS = {
    "suspected": ("unnoticed", "it had failed, and was not suspected yet"),
    "verdict": ("finding the cause", "evidence of all ranks was collected and judged"),
    "evicted": ("evicting", "the node was taken out"),
    "old workers ended": ("ending the old workers", "until no process of the attempt was left"),
    "relaunched": ("waiting for nodes", "until the next attempt had its nodes and its store"),
    "workers up": ("starting workers", "until every worker's process ran"),
    "ranks went on": ("standing still", "ranks waited; nothing was done about it"),
    "first step": ("starting up", "imports, process groups, checkpoint, first batch"),
}


class CourseInterval(msgspec.Struct, frozen=True):
    """What happened between two milestones."""

    name: str
    what: str
    after: Milestone
    before: Milestone

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.before.at_s - self.after.at_s


def milestones(
    incident: Incident, struck: AttemptTimes | None, following: AttemptTimes | None
) -> tuple[Milestone, ...]:
    """Return the moments that are known, in order of time; the onset is the first."""
    known: list[tuple[str, float | None]] = [
        ("suspected", incident.detected_s),
        ("verdict", _verdict_s(incident, struck)),
    ]
    if incident.action.name != "report":
        if incident.action.name == "evict":
            known.append(("evicted", _evicted_s(incident, struck)))
        known.append(("old workers ended", struck.ended_s if struck is not None else None))
    stood = standstill_of(incident, struck)
    if stood is not None:
        known.append(("ranks went on", stood.end_s))
    if incident.action.name not in ("report", "stop"):
        known.append(("relaunched", following.ordered_s if following is not None else None))
        known.append(("workers up", following.started_s if following is not None else None))
        known.append(("first step", incident.resumed_s))
    moments = [Milestone(name="onset", at_s=incident.onset_s)]
    order = {"onset": -1} | {name: index for index, (name, _) in enumerate(known)}
    moments += [Milestone(name=name, at_s=max(at_s, incident.onset_s)) for name, at_s in known if at_s is not None]
    return tuple(sorted(moments, key=lambda moment: (moment.at_s, order[moment.name])))


def _verdict_s(incident: Incident, struck: AttemptTimes | None) -> float:
    if struck is not None and struck.verdict_s is not None:
        return min(struck.verdict_s, incident.decided_s)
    return incident.decided_s


def _evicted_s(incident: Incident, struck: AttemptTimes | None) -> float:
    return struck.evicted_s if struck is not None and struck.evicted_s is not None else _verdict_s(incident, struck)


def intervals(moments: Sequence[Milestone]) -> tuple[CourseInterval, ...]:
    """Return what lies between the moments, by name."""
    return tuple(
        CourseInterval(*INTERVALS.get(before.name, ("", "")), after, before)
        for after, before in itertools.pairwise(moments)
    )


def lost_of(
    incident: Incident,
    struck: AttemptTimes | None,
    kept: ReportedCheckpoint | None,
    until_s: float,
    *,
    is_final: bool = False,
) -> IncidentCost:
    """Return what an incident cost. `until_s`: now, or when the job was over (`is_final`), for one without a next step.

    Steps are those since the last checkpoint before the onset, by how long a step took; where no checkpoint is known, at
    most all steps of the attempt. One that was only reported cost the time in which ranks stood still, where they did.
    """
    ranks = struck.world_size if struck is not None else 0
    if incident.action.name == "report":
        return _stood(incident, struck, until_s, is_final=is_final)
    end_s = incident.resumed_s if incident.resumed_s is not None else until_s
    seconds = max(0.0, end_s - incident.onset_s)
    lost = IncidentCost(seconds=seconds, ranks=ranks, is_over=is_final or incident.resumed_s is not None)
    if struck is None or struck.steps is None:
        return lost
    first_s = struck.first_step_s
    if first_s is None or struck.steps == 0:
        return msgspec.structs.replace(lost, steps=0)
    trained_s = max(0.0, incident.onset_s - first_s)
    step_s = trained_s / struck.steps
    if kept is None:
        return msgspec.structs.replace(lost, steps=struck.steps, is_most=True, step_s=step_s)
    redone_s = min(max(0.0, incident.onset_s - max(kept.created_s, first_s)), trained_s)
    steps = min(struck.steps, round(redone_s / step_s)) if step_s > 0 else 0
    return msgspec.structs.replace(lost, steps=steps, redone_s=redone_s, step_s=step_s)


def standstill_of(incident: Incident, struck: AttemptTimes | None) -> Standstill | None:
    """Return the standstill that an incident reported; None: nothing stood still, or it is not known."""
    found = struck.standstills if struck is not None else ()
    return next((each for each in found if each.incident == incident.id), None)


def _stood(incident: Incident, struck: AttemptTimes | None, until_s: float, *, is_final: bool) -> IncidentCost:
    """Return what a wait cost that was only reported: from its onset until ranks went on, or until the attempt was ended for it."""
    stood = standstill_of(incident, struck)
    if stood is None or struck is None:
        return IncidentCost(seconds=0.0, ranks=struck.world_size if struck is not None else 0, is_over=True)
    end_s = stopped_s(stood.end_s, struck.told_s, struck.ended_s)
    seconds = max(0.0, (end_s if end_s is not None else until_s) - stood.begin_s)
    return IncidentCost(seconds=seconds, ranks=struck.world_size, is_over=is_final or end_s is not None, steps=0)
