"""Which state a simulated job can go on from: storage, or memory on its own nodes and others. Pure.

What keepers hold is looked at by whole nodes here: a node's part is there if the node is, or the one that was told to keep its
copies. The core says which one that is (`JobState.memory_peers`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from robust_run.planning.course import AttemptCourse
from robust_run.planning.words import Saving, Times


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A state that the job had."""

    source: str = ""
    """storage, memory or peer; empty: the beginning."""
    at_s: float = 0.0
    """When it had it."""


class InMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What keepers hold of the attempt that saved last."""

    at_s: float
    peers: Mapping[str, str]
    """By agent that had ranks: the one that keeps its copies, or nothing."""


class Stored(msgspec.Struct, frozen=True):
    """What one attempt saved to storage."""

    first_s: float
    """Its first step: from there on it saved at each interval."""
    until_s: float
    """Nothing later of it can be gone on from."""


def stored(attempt: AttemptCourse, saving: Saving) -> Stored | None:
    """Return what an attempt that is over has saved to storage; None: nothing."""
    first_s, stopped_s = attempt.first_step_s, attempt.stopped_s
    if first_s is None or stopped_s is None or stopped_s - saving.lag_s - first_s < saving.every_s:
        return None
    return Stored(first_s, stopped_s - saving.lag_s)


def unspoiled(all_: Sequence[Stored], before_s: float) -> list[Stored]:
    """Return what is left without all that was saved after a moment."""
    kept = (Stored(each.first_s, min(each.until_s, before_s)) for each in all_)
    return [each for each in kept if each.until_s > each.first_s]


def distrusted_since(before: AttemptCourse | None) -> float | None:
    """Return since when nothing that was saved is gone on from, as code has written it that was rolled back; None: it was not.

    `before`: the attempt before. Memory holds what was saved last: after a rollback a job goes on from storage.
    """
    return before.first_step_s if before is not None and before.action == "rollback" else None


def newest(all_: Sequence[Stored], memory: InMemory | None, agents: Collection[str], saving: Saving) -> Point:
    """Return the newest state that can be gone on from. `agents`: that are there."""
    in_storage = _in_storage(all_, saving)
    if memory is None or memory.at_s <= in_storage.at_s:
        return in_storage
    away = [agent for agent in memory.peers if agent not in agents]
    if any(memory.peers[agent] not in agents for agent in away):
        return in_storage
    return Point(source="peer" if away else "memory", at_s=memory.at_s)


def _in_storage(all_: Sequence[Stored], saving: Saving) -> Point:
    for each in reversed(all_):
        count = math.floor((each.until_s - each.first_s) / saving.every_s)
        if count >= 1:
            return Point(source="storage", at_s=each.first_s + count * saving.every_s)
    return Point()


def kept_at(attempt: AttemptCourse, saving: Saving, times: Times) -> float | None:
    """Return when the state was current that is newest in memory as an attempt stops; None: it kept none."""
    first_s, stopped_s = attempt.first_step_s, attempt.stopped_s
    if not saving.memory_steps or first_s is None or stopped_s is None or stopped_s <= first_s:
        return None
    every_s = saving.memory_steps * times.step
    count = math.floor((stopped_s - first_s) / every_s)
    return first_s + count * every_s if count >= 1 else None
