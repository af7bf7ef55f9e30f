"""The course of a job's queues and waits, in at most `MOST_POINTS` points: neighbours become one as the job grows older. Pure.

Seconds of waiting are added up from the beginning of the job, so that a stretch between any two points is known exactly, however
many points between them are gone. Of how full a queue was, a point has the least and the most since the point before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.orchestrator.model.queue_state import QueueState

SCHEMA = 1
MOST_POINTS = 240
#: Members that are kept one by one; of more, roles only.
MOST_MEMBERS = 48
FIRST_S = 1.0
"""How far apart points of a young job are."""
#: What the longest history takes as JSON.
LARGEST_BYTES = 4 << 20


class Fill(msgspec.Struct, frozen=True, array_like=True):
    """How many items a queue had."""

    low: int
    """Waiting ones, least since the point before."""
    high: int
    leased: int = 0
    """At the moment of the point."""
    kept: int = 0


class Waited(msgspec.Struct, frozen=True, array_like=True):
    """Of all workers of a role or member, since the job began."""

    waited_s: float
    """For how long they waited at queues."""
    here_s: float
    """For how long they were there."""


class CoursePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One moment."""

    at_s: float
    """Seconds since the epoch."""
    queues: Mapping[str, Fill] = {}
    roles: Mapping[str, Waited] = {}
    members: Mapping[str, Waited] = {}
    """Empty where there are too many."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept, oldest first."""

    schema: int = SCHEMA
    apart_s: float = FIRST_S
    """How far apart new points are to be."""
    points: tuple[CoursePoint, ...] = ()


def fill_of(state: QueueState) -> Fill:
    """Return how full a queue is now."""
    leased = sum(held.standing == "leased" for held in state.held.values())
    waiting = len(state.held) - leased - state.kept
    return Fill(low=waiting, high=waiting, leased=leased, kept=state.kept)


def point_of(
    at_s: float, queues: Mapping[str, Fill], members: Mapping[str, tuple[float, float]], before: CoursePoint | None
) -> CoursePoint:
    """Return a point. `members`: seconds that workers waited and were here, by member. `before`: what an earlier leader had."""
    own: dict[str, tuple[float, float]] = dict(members)
    roles: dict[str, tuple[float, float]] = {}
    for name, (waited_s, here_s) in own.items():
        role = name.partition("/")[0]
        had = roles.get(role, (0.0, 0.0))
        roles[role] = (had[0] + waited_s, had[1] + here_s)
    return CoursePoint(
        at_s=round(at_s, 2),
        queues=queues,
        roles=_added_up(roles, before.roles if before is not None else {}),
        members=_added_up(own, before.members if before is not None else {}) if len(own) <= MOST_MEMBERS else {},
    )


def _added_up(new: Mapping[str, tuple[float, float]], old: Mapping[str, Waited]) -> dict[str, Waited]:
    none = Waited(0.0, 0.0)
    return {
        name: Waited(
            round(old.get(name, none).waited_s + new.get(name, (0.0, 0.0))[0], 2),
            round(old.get(name, none).here_s + new.get(name, (0.0, 0.0))[1], 2),
        )
        for name in (*old, *(name for name in new if name not in old))
    }


def added(course: Course, new: CoursePoint) -> Course:
    """Return the history with a point more. Points of later than now, of a clock that was set back since, are forgotten."""
    points = [*(point for point in course.points if point.at_s < new.at_s), new]
    if len(points) <= MOST_POINTS:
        return msgspec.structs.replace(course, points=tuple(points))
    newest = points.pop() if len(points) % 2 else None
    thinned = [_one_of(*points[at : at + 2]) for at in range(0, len(points), 2)]
    return msgspec.structs.replace(
        course, apart_s=course.apart_s * 2, points=(*thinned, *((newest,) if newest is not None else ()))
    )


def _one_of(first: CoursePoint, second: CoursePoint) -> CoursePoint:
    queues = {
        name: msgspec.structs.replace(fill, low=min(fill.low, other.low), high=max(fill.high, other.high))
        for name, fill in second.queues.items()
        for other in (first.queues.get(name, fill),)
    }
    return msgspec.structs.replace(second, queues=queues)


def share_between(before: Waited | None, after: Waited) -> float | None:
    """Return which share of the time between two points was waited; None: nobody was there, or they do not fit."""
    waited_s, here_s = (before.waited_s, before.here_s) if before is not None else (0.0, 0.0)
    if after.here_s - here_s <= 0.0:
        return None
    return min(max((after.waited_s - waited_s) / (after.here_s - here_s), 0.0), 1.0)


def idle_of(points: Sequence[CoursePoint]) -> dict[str, float]:
    """Return, by role, which share of all its time its workers waited at queues."""
    if not points:
        return {}
    return {
        role: share for role, total in points[-1].roles.items() if (share := share_between(None, total)) is not None
    }
