"""A leader that lost sight of its nodes: it gives nobody up and decides nothing, until it sees one again or stands down. Pure.

How it knows: nodes that it has heard in this term are silent, all at about the same time; those that still answer, its own with
them, are too few for the job; those that are silent are enough for it, and one of them is in line to lead. If nobody answers at
all, nodes count that were lost before: they may be back, and could not say so here. Then this leader is rather
cut off than all of them gone. Should they be gone, nothing is lost by not saying so: it can run nothing with what it has.

What looks the same. All other nodes lost their power at once: nobody claims the leadership, this node takes it again two turns
later, has heard nobody in that term, and gives them up as any controller that follows another does. Not meant: a node that is
lost beside others that answer, a job of two nodes (the other could not go on alone either), one that can go on here, one that is
being ended. All of these go on as ever, 3.5 s after the last sign of life.

How long it waits: as long as since it last heard **anybody**, and the machine that was least late of those silent, is known; not
until the longest lease of any of them is over. On a starved machine where timers are late by a second that is a second more.
Time in which this process itself stood still does not count: what others said meanwhile has to be read first. If it stands down
for nothing, workers do not notice: their agents follow the next leader within their lease.

What comes later: once a node is heard again, the others that were silent with it are waited for from then on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from robust_run.launcher.controller.leadership.alone import HELD_UP_S
from robust_run.launcher.controller.leases import Leases
from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.lease_times import LATE_STEPS_S, MARGIN_S, LeaseTimes

#: A node that speaks every second is not silent before it has been for so many of its heartbeats.
HEARTBEATS = 1.5


@dataclass(frozen=True)
class Sight:
    """What a leader sees of the nodes that its job can use."""

    answering: int
    """Those that were heard a moment ago, its own with them."""
    silent: int
    """Those that were heard in this term, and not for a while."""
    away: int
    """Those that were lost before and may be back by now, where nobody else answers."""
    can_lead: bool
    """Whether one of the silent is in line to lead."""
    heard_s: float
    """When the last of the silent was heard."""
    late_s: float
    """By how much the timers of the least late of them were late, and this process's."""


def silent_after_s(times: LeaseTimes, heartbeat_s: float) -> float:
    """Return the silence after which a node is out of sight: it is over where one that went with it is about to be given up."""
    return max(times.lost_s - heartbeat_s - MARGIN_S, heartbeat_s * HEARTBEATS)


def sight_of(
    state: JobState,
    detector: FailureDetector,
    leases: Leases,
    line: Collection[str],
    own: str,
    after_s: float,
    now_s: float,
) -> Sight | None:
    """Return what is seen of the nodes that the job can use, None where none of them is silent, or the job is being ended.

    `line`: HOST:PORT of those in line to lead; `own`: the agent of this leader's node.
    """
    if detector.longest_silence_s(now_s) < after_s or state.is_stopping or state.is_over:
        return None
    members = [each for each in state.members.values() if each.info.name not in state.evicted]
    nodes = [(member.info, detector.heard_at_s(member.info.id)) for member in members if member.present]
    silent = [(info, at_s) for info, at_s in nodes if at_s is not None and now_s - at_s >= after_s and info.id != own]
    late_s = [leases.late_s(info.id, now_s) for info, _ in silent]
    met = [(info, at_s, late) for (info, at_s), late in zip(silent, late_s, strict=True) if late is not None]
    if not met:
        return None
    answering = [info for info, at_s in nodes if at_s is not None and (now_s - at_s < after_s or info.id == own)]
    is_alone = all(info.id == own for info in answering)
    return Sight(
        answering=len(answering),
        silent=len(met),
        away=sum(member.gone == "lost" for member in members) if is_alone else 0,
        can_lead=any(info.candidate and info.candidate in line for info, _, _ in met),
        heard_s=max(at_s for _, at_s, _ in met),
        late_s=min(late for _, _, late in met),
    )


class SightWatch:
    """Follows whether a leader has lost sight of its nodes."""

    def __init__(self, times: LeaseTimes, heartbeat_s: float) -> None:
        self.is_lost = False
        """Whether it has: then it gives nobody up and decides nothing."""
        self.silent_after_s = silent_after_s(times, heartbeat_s)
        self._patience_s = times.lost_s
        self._watched_s = 0.0
        self._looked_at_s: float | None = None

    def look(self, sight: Sight | None, fewest: int, now_s: float) -> bool:
        """Return whether to stand down now. `sight`: None where nobody is silent, or that does not matter."""
        apart_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        if sight is None or not sight.can_lead or not sight.answering < fewest <= sight.silent + sight.away:
            self.is_lost, self._watched_s = False, 0.0
            return False
        if self.is_lost and apart_s <= HELD_UP_S:
            self._watched_s += apart_s
        self.is_lost = True
        patience_s = self._patience_s + min(sight.late_s, LATE_STEPS_S[-1])
        return now_s - sight.heard_s >= patience_s and self._watched_s >= self._patience_s - self.silent_after_s
