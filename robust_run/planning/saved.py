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


def newest(
    attempts: Sequence[AttemptCourse],
    memory: InMemory | None,
    agents: Collection[str],
    saving: Saving,
    before_s: float = math.inf,
) -> Point:
    """Return the newest state that can be gone on from. `agents`: that are there. `before_s`: later ones are spoiled."""
    stored = _in_storage(attempts, saving, before_s)
    if memory is None or memory.at_s > before_s or memory.at_s <= stored.at_s:
        return stored
    away = [agent for agent in memory.peers if agent not in agents]
    if any(memory.peers[agent] not in agents for agent in away):
        return stored
    return Point(source="peer" if away else "memory", at_s=memory.at_s)


def _in_storage(attempts: Sequence[AttemptCourse], saving: Saving, before_s: float) -> Point:
    for attempt in reversed(attempts):
        first_s, stopped_s = attempt.first_step_s, attempt.stopped_s
        if first_s is None or stopped_s is None or first_s >= stopped_s:
            continue
        limit_s = min(stopped_s - saving.lag_s, before_s)
        count = math.floor((limit_s - first_s) / saving.every_s)
        if count >= 1:
            return Point(source="storage", at_s=first_s + count * saving.every_s)
        if attempt.resumed_s is not None and attempt.resumed_s <= before_s and attempt.source == "storage":
            return Point(source="storage", at_s=attempt.resumed_s)
    return Point()


def kept_at(attempt: AttemptCourse, saving: Saving, times: Times) -> float | None:
    """Return when the state was current that is newest in memory as an attempt stops; None: it kept none."""
    first_s, stopped_s = attempt.first_step_s, attempt.stopped_s
    if not saving.memory_steps or first_s is None or stopped_s is None or stopped_s <= first_s:
        return None
    every_s = saving.memory_steps * times.step
    count = math.floor((stopped_s - first_s) / every_s)
    return first_s + count * every_s if count >= 1 else None
