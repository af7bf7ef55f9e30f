"""Whether what a rank has given to torch gets done: its second clock, beside that of its calls. Pure.

A rank's Python may be silent while its work goes on (a compiled graph, a C++ loop, a GPU that has much to do): then it is not
hung. Or it is silent, and of what it has given to a group nothing is completed any more: then it waits for somebody, though no
call of its ring says so. What is never completed while the rank makes steps (a group that was destroyed with work in it, an
operation that nobody waits for) keeps nobody waiting and is only noted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.tracer.flight.types import GroupClock, GroupName
from robust_run.tracer.types import FlightSight, GroupProgress

#: Looks further apart than this are no longer one watch: what stood still before may have moved and come to stand still again.
#: A machine or a job that was suspended looks like that, too.
APART_S = 15.0
#: A look that is older than this says nothing of now: the server does not answer, or is not asked.
STALE_S = 30.0
#: So many steps of a rank while nothing of a group was completed: what is under way there keeps nobody waiting.
GOING_STEPS = 2
#: That is told after so many steps and so much time.
NOTED_STEPS, NOTED_S = 10, 60.0


class _Group(msgspec.Struct):
    clock: GroupClock
    open_since_s: float | None
    """When it was first seen with something under way and this count of what is completed."""
    steps: int
    """Of the rank, then."""
    is_noted: bool = False


class StillWork(msgspec.Struct, frozen=True):
    """Work that is not completed although its rank goes on."""

    name: str
    """Of its group, "" if that is not known."""
    enqueued: int
    completed: int
    steps: int
    """That the rank has made meanwhile."""
    stood_s: float


class Progress:
    """One rank, as its recorder tells. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.moved_at_s: float | None = None
        """Something was completed after this."""
        self._looked_s: dict[bool, float] = {}
        """By recorder, when it was looked at last."""
        self._groups: dict[tuple[bool, int], _Group] = {}
        self._names: dict[tuple[bool, int], GroupName] = {}

    def take(self, clocks: Iterable[GroupClock], at_s: float, steps: int, *, on_nccl: bool = False) -> None:
        """Take in all that one recorder said at a time. What is not newer than its newest look is left out.

        `steps`: of the rank, by then.
        """
        before_s = self._looked_s.get(on_nccl)
        if before_s is not None and at_s <= before_s:
            return
        self._looked_s[on_nccl] = at_s
        is_watched = before_s is not None and at_s - before_s <= APART_S
        seen: dict[tuple[bool, int], _Group] = {}
        for clock in clocks:
            known = self._groups.get(clock.key)
            if before_s is not None and known is not None and clock.completed != known.clock.completed:
                # At the earliest just after the look before; who counts from 0 again has done something, too.
                self.moved_at_s = max(before_s, self.moved_at_s or 0.0)
            seen[clock.key] = self._next(known, clock, at_s, steps, is_watched)
        others = {key: group for key, group in self._groups.items() if key[0] != on_nccl}
        self._groups = others | {key: group for key, group in seen.items() if key[0] == on_nccl}

    @staticmethod
    def _next(known: _Group | None, clock: GroupClock, at_s: float, steps: int, is_watched: bool) -> _Group:
        same = known is not None and clock.completed == known.clock.completed and clock.is_open
        if known is not None and same and known.open_since_s is not None and is_watched:
            return _Group(clock, known.open_since_s, known.steps, known.is_noted)
        return _Group(clock, at_s if clock.is_open else None, steps)

    def learn(self, names: Iterable[GroupName]) -> None:
        """Take in what groups are called."""
        for name in names:
            known = self._names.get((name.on_nccl, name.pg))
            has_p2p = name.has_p2p or (known is not None and known.has_p2p)
            self._names[name.on_nccl, name.pg] = GroupName(name.on_nccl, name.pg, name.name, has_p2p)

    @property
    def unnamed(self) -> frozenset[tuple[bool, int]]:
        """Groups whose names are not known yet."""
        return frozenset(self._groups.keys() - self._names.keys())

    def waiting_since_s(self, steps: int, event_s: float, now_s: float, stale_s: float = STALE_S) -> float | None:
        """Return since when nothing has happened to what the rank has under way; None: nothing is, or it goes on, or the newest
        look is older than `stale_s`. `event_s`: of the newest call or step.
        """
        since = [
            group.open_since_s
            for (on_nccl, _), group in self._groups.items()
            if group.open_since_s is not None
            and steps - group.steps < GOING_STEPS
            and now_s - self._looked_s[on_nccl] <= stale_s
        ]
        return max(min(since), event_s, self.moved_at_s or 0.0) if since else None

    def still_work(self, steps: int, now_s: float) -> StillWork | None:
        """Return work that is not completed although the rank goes on; of each group's once."""
        for key, group in self._groups.items():
            since_s = group.open_since_s
            if group.is_noted or since_s is None or steps - group.steps < NOTED_STEPS or now_s - since_s < NOTED_S:
                continue
            group.is_noted = True
            name = self._names[key].name if key in self._names else ""
            clock = group.clock
            return StillWork(name, clock.enqueued, clock.completed, steps - group.steps, now_s - since_s)
        return None

    def sight(self) -> FlightSight | None:
        """Return what is known of the rank; None: nothing. Of groups of one name only the newest counts."""
        if not self._looked_s:
            return None
        found: dict[str, GroupProgress] = {}
        for key in sorted(self._groups.keys() & self._names.keys()):
            group, name = self._groups[key], self._names[key]
            before = found.get(name.name)
            found[name.name] = GroupProgress(
                name=name.name,
                enqueued=group.clock.enqueued,
                completed=group.clock.completed,
                open_since_s=group.open_since_s,
                comparable=not name.has_p2p,
                made=before.made + 1 if before is not None else 0,
            )
        return FlightSight(at_s=max(self._looked_s.values()), moved_at_s=self.moved_at_s, groups=tuple(found.values()))
