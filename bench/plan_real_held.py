"""Holds real jobs against their plans: ETTR and phases of each, and what they come to together. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from plan_real_plan import Measured, plan_of, real_course, simulated
from plan_real_words import Came

from robust_run.planning.course import Course, lost
from robust_run.planning.words import Plan

WITHIN = 0.03
PHASES = ("start", "detect", "end", "wait", "launch", "load", "redo")
"""start: until the first step of a job. The others are those of plans, after it."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One job, and its plan: the mean over seeds that draw durations."""

    came: Came
    real: float
    plan: float
    """Both ETTR."""
    real_s: dict[str, float]
    plan_s: dict[str, float]
    """Seconds of the job by phase."""
    plan_attempts: float
    plan_actions: dict[str, float]

    @property
    def off(self) -> float:
        """Real minus plan."""
        return self.real - self.plan


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs together."""

    jobs: int
    real: float
    plan: float
    off: float
    error: float
    """Standard error of `off`."""
    largest: float
    within: int
    """So many single jobs are within 3 points."""


def held(came: Came, known: Measured, seeds: Iterable[int]) -> Held:
    """Hold one job against its plan, under the same faults."""
    plan = plan_of(came.job, known, came.until_s)
    courses = simulated(came, known, seeds)
    losts = [phases(each, plan) for each in courses]
    names = sorted({name for each in courses for name in each.actions})
    return Held(
        came=came,
        real=came.ettr,
        plan=statistics.mean(lost(each, plan.saving, plan.times).ettr for each in courses),
        real_s=phases(real_course(came), plan),
        plan_s={name: statistics.mean(each[name] for each in losts) for name in PHASES},
        plan_attempts=statistics.mean(len(each.attempts) for each in courses),
        plan_actions={name: statistics.mean(each.actions.get(name, 0) for each in courses) for name in names},
    )


def phases(course: Course, plan: Plan) -> dict[str, float]:
    """Return seconds by phase. What comes before the first step of all is one of its own, but for what is trained again."""
    until_s = course.until_s
    first_s = next((each.first_step_s for each in course.attempts if each.first_step_s is not None), until_s)
    whole = _seconds(course, plan)
    early = _seconds(msgspec.structs.replace(course, until_s=first_s), plan)
    found = {name: whole[name] - (early[name] if name != "redo" else 0.0) for name in PHASES if name != "start"}
    return {"start": first_s, **found}


def _seconds(course: Course, plan: Plan) -> dict[str, float]:
    return {name: share * course.until_s for name, share in lost(course, plan.saving, plan.times).by_phase.items()}


def summed(all_held: Sequence[Held]) -> Sum:
    """Return what all come to."""
    offs = [each.off for each in all_held]
    return Sum(
        jobs=len(all_held),
        real=statistics.mean(each.real for each in all_held),
        plan=statistics.mean(each.plan for each in all_held),
        off=statistics.mean(offs),
        error=statistics.stdev(offs) / len(offs) ** 0.5 if len(offs) > 1 else 0.0,
        largest=max(offs, key=abs),
        within=sum(abs(each) <= WITHIN for each in offs),
    )


def mean_phases(all_held: Sequence[Held]) -> list[tuple[str, float, float]]:
    """Return seconds of a job by phase, of both sides."""
    return [
        (
            name,
            statistics.mean(each.real_s[name] for each in all_held),
            statistics.mean(each.plan_s[name] for each in all_held),
        )
        for name in PHASES
    ]


def actions(all_held: Sequence[Held]) -> dict[str, tuple[float, float]]:
    """Return incidents of all jobs by what was done, of both sides."""
    real: Counter[str] = Counter()
    plan: dict[str, float] = {}
    for each in all_held:
        real.update(each.came.actions)
        for name, count in each.plan_actions.items():
            plan[name] = plan.get(name, 0.0) + count
    return {name: (float(real[name]), plan.get(name, 0.0)) for name in sorted({*real, *plan})}


def strikes(all_held: Sequence[Held]) -> dict[str, Counter[str]]:
    """Return what came of the faults, by kind."""
    found: dict[str, Counter[str]] = {}
    for each in all_held:
        for strike in each.came.strikes:
            found.setdefault(strike.name, Counter())[strike.came.partition(":")[0]] += 1
    return dict(sorted(found.items()))
