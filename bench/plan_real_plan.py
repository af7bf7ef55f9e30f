"""The plan of a short real job: its times are measured in calibration jobs, never in those it is held against."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec
from plan_real_draw import as_faults
from plan_real_words import DAY_S, LONG_S, MIX, NODES, NOT_RAISED, STANDBY, Came, RealJob, Strike

from robust_run.planning.course import Course
from robust_run.planning.simulated.world import simulate
from robust_run.planning.words import Mechanisms, Mix, Plan, Saving, Spread, Times

NEVER = Spread(LONG_S)
FEW = 3
"""Fewer samples than these say nothing."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What calibration jobs say."""

    jobs: int
    mix: Mix
    times: Times
    update_s: float
    """From the command until the update is staged."""
    counts: dict[str, int]
    """Samples of each duration."""


def spread(samples: Sequence[float]) -> Spread:
    """Return the log-normal distribution with the median of the samples and with their 95 % quantile."""
    ordered = sorted(samples)
    if not ordered:
        return Spread(0.0)
    at = 0.95 * (len(ordered) - 1)
    low = math.floor(at)
    p95 = ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (at - low)
    return Spread(statistics.median(ordered), p95)


def measured(all_came: Iterable[Came]) -> Measured:
    """Return what the samples of calibration jobs make a plan."""
    jobs = list(all_came)
    found: dict[str, list[float]] = {}
    for came in jobs:
        for name, samples in came.samples.items():
            found.setdefault(name, []).extend(samples)
    get = lambda name: found.get(name, [])  # noqa: E731
    connect_s = statistics.median(get("load_nothing")) if len(get("load_nothing")) >= FEW else 0.0
    firsts = [came.attempts[0].first_step_s for came in jobs if came.attempts]
    cold = [max(each - connect_s, 0.0) for each in firsts if each is not None]
    localise = statistics.median(get("localise")) if get("localise") else 0.0
    detect = {name: get(f"detect {name}") for name in MIX.faults}
    detect["stopped"] = [max(each - localise, 0.0) for each in get("act stopped")]
    faults = {
        name: msgspec.structs.replace(kind, detect=spread(detect[name]) if detect[name] else kind.detect)
        for name, kind in MIX.faults.items()
    }
    faults["power"] = msgspec.structs.replace(faults["power"], repair=spread(get("back")))
    return Measured(
        jobs=len(jobs),
        mix=msgspec.structs.replace(MIX, faults=faults),
        times=Times(
            end=spread(get("end")),
            launch=spread(get("launch")),
            cold_launch=spread(cold),
            connect=Spread(connect_s),
            load_storage=spread([max(each - connect_s, 0.0) for each in get("load_storage")]),
            load_memory=spread([max(each - connect_s, 0.0) for each in get("load_memory")]),
            localise=Spread(localise),
            requeue=NEVER,
            person=NEVER,
            drain=NEVER,
            step=statistics.median(get("step")),
            ask=statistics.median(get("ask")),
            ask_all=statistics.median(get("ask_all")),
        ),
        update_s=statistics.median(get("update")) if get("update") else 0.0,
        counts={"start": len(cold), **{name: len(samples) for name, samples in sorted(found.items())}},
    )


def plan_of(job: RealJob, known: Measured, until_s: float) -> Plan:
    """Return the plan of a job."""
    return Plan(
        nodes=NODES,
        gpus_per_node=1,
        days=until_s / DAY_S,
        standby=STANDBY,
        mix=known.mix,
        times=known.times,
        saving=Saving(every_s=job.every * known.times.step, blocks_s=0.0, lag_s=0.0, memory_steps=int(job.memory)),
        uses=Mechanisms(checks=False, memory=job.memory),
        torch_timeout_s=1800.0,
    )


def simulated(came: Came, known: Measured, seeds: Iterable[int]) -> list[Course]:
    """Return the courses of a job's plan under the very faults of its schedule; a seed draws durations alone."""
    plan = plan_of(came.job, known, came.until_s)
    struck = [
        msgspec.structs.replace(each, at_s=each.at_s + known.update_s) if each.host < 0 else each
        for each in came.strikes
        if each.came != NOT_RAISED
    ]
    struck.sort(key=lambda each: each.at_s)
    faults = as_faults(struck, known.mix)
    return [_as_known(simulate(plan, seed, faults)) for seed in seeds]


def _as_known(course: Course) -> Course:
    """Leave out what a launcher does not know of yet as the time is over: a hang that has just begun counts as training."""
    newest = course.attempts[-1]
    if newest.told_s is None:
        newest.onset_s = None
    return course


def real_course(came: Came) -> Course:
    """Return a real job's course as plans have it."""
    return Course(seed=came.job.number, until_s=came.until_s, attempts=list(came.attempts), actions=dict(came.actions))


def fired(strikes: Iterable[Strike]) -> int:
    """Return how many faults had something to strike."""
    return sum(each.came == "fired" for each in strikes)
