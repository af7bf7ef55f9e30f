"""When a wait is longer than usual. Pure: an agent feeds what it reads in the rings' headers, four times a second.

How long ranks wait for each other depends on the job: microseconds in one, a minute in another whose stages differ. So the
threshold follows each rank's own gaps between two signs of progress, and has a floor; before the first step, when all ranks
load and compile, the floor is higher. That a wait is long is no verdict. It is when evidence is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set

import msgspec

#: How often headers are looked at.
LOOK_S = 0.25
#: Looks that are further apart: who looks stood still in between, and its ranks most likely too, as on a machine that was
#: suspended or moved. No more than the second counts then.
APART_S, COUNTS_S = 10.0, 1.0
#: Where looks come so far apart one after the other, as on a busy machine, ranks may run meanwhile: such a time counts, unless
#: it is longer than the first of these, or so many looks before it were on time.
MUCH_APART_S, ON_TIME = 60.0, 8
#: Of such times the newest are kept.
STANDSTILLS = 64
#: The threshold is this many times the gap that 99 % of the last `GAPS` are shorter than.
FACTOR = 3.0
GAPS = 200
#: The floor before the first optimizer step, as a multiple of the usual one; and how many looks that found progress end it
#: too, where steps are not counted.
START_FACTOR = 2.0
STARTED = 20
#: From this optimizer step on gaps are those of training.
STEADY_STEPS = 2
#: A wait that goes on is reported again after twice the time of the report before.
BACK_OFF = 2.0
#: Each rank made so many steps since a wait was reported: they train nevertheless. What waits is a thread that is beside that.
GOING_STEPS = 2


class RingHeartbeat(msgspec.Struct, frozen=True):
    """What a rank's ring says at one moment; times are monotonic seconds."""

    events: int
    """Counts all that it did."""
    steps: int
    waiting_since_s: float | None
    """Since when its longest wait for peers has been going on."""


class LongWait(msgspec.Struct, frozen=True, kw_only=True):
    """A rank waits for longer than usual."""

    rank: int
    waited_s: float
    after_s: float
    """The threshold it passed."""
    number: int = 0
    """Counts the long waits of these ranks, from 1."""


class _Rank:
    def __init__(self, now_s: float) -> None:
        self.events = -1
        self.changed_at_s = now_s
        self.gaps_s: deque[float] = deque(maxlen=GAPS)
        self.is_steady = False

    def take(self, beat: RingHeartbeat, now_s: float) -> None:
        if beat.steps >= STEADY_STEPS and not self.is_steady:
            # Imports, connections and the first step took what they took: that says nothing of the steps that follow.
            self.is_steady, self.events = True, beat.events
            self.gaps_s.clear()
            self.changed_at_s = now_s
        if beat.events != self.events:
            if self.events >= 0:
                self.gaps_s.append(now_s - self.changed_at_s)
            self.events, self.changed_at_s = beat.events, now_s

    def threshold_s(self, floor_s: float, steps: int) -> float:
        floor_s *= START_FACTOR if steps == 0 and len(self.gaps_s) < STARTED else 1.0
        if not self.gaps_s:
            return floor_s
        ordered = sorted(self.gaps_s)
        return max(floor_s, FACTOR * ordered[int(0.99 * (len(ordered) - 1))])


class Suspicion:
    """The waits of one node's ranks in one attempt."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._ranks: dict[int, _Rank] = {}
        self._reported_at_s: float | None = None
        self._pause_s = floor_s
        self._number = 0
        self._first_told_s = 0.0
        """When the wait with that number was first reported."""
        self._steps: dict[int, int] | None = None
        """By rank, those it had made when the wait was first reported that goes on; None: none does."""
        self._waiters: frozenset[int] = frozenset()
        """Who waited when that was first reported."""
        self._looked_at_s: float | None = None
        self._on_time = ON_TIME
        """Looks in a row."""
        self._standstills: deque[tuple[float, float]] = deque(maxlen=STANDSTILLS)
        """When one was over, and how long it was."""
        self.over: int | None = None
        """Number of the long wait that was over at the newest look; None: none was."""

    def look(self, beats: Mapping[int, RingHeartbeat], now_s: float, failed: Set[int] = frozenset()) -> LongWait | None:
        """Take in what the rings say now; return the longest wait that is too long, but not again and again.

        `failed`: ranks whose wait ended in an error, and that have done nothing since: that is no end after which they go on.
        """
        longest: LongWait | None = None
        self.over = None
        apart_s = now_s - self._looked_at_s if self._looked_at_s is not None else 0.0
        self._looked_at_s = now_s
        if apart_s > MUCH_APART_S or (apart_s > APART_S and self._on_time >= ON_TIME):
            self._standstills.append((now_s, apart_s - COUNTS_S))
        self._on_time = 0 if apart_s > APART_S else self._on_time + 1
        for rank, beat in beats.items():
            known = self._ranks.setdefault(rank, _Rank(now_s))
            known.take(beat, now_s)
            if beat.waiting_since_s is None:
                continue
            waited_s = self._awake_s(beat.waiting_since_s, now_s)
            if waited_s < self._floor_s or (longest is not None and waited_s <= longest.waited_s):
                continue
            after_s = known.threshold_s(self._floor_s, beat.steps)
            if waited_s >= after_s:
                longest = LongWait(rank=rank, waited_s=waited_s, after_s=after_s)
        self._note_end(beats, failed)
        if longest is None:
            if self._steps is None:  # else it goes on, and is not news when it has passed the threshold again
                self._reported_at_s, self._pause_s = None, self._floor_s
            return None
        if self._reported_at_s is not None and now_s - self._reported_at_s < self._pause_s:
            return None
        if self._reported_at_s is not None:
            self._pause_s *= BACK_OFF
        self._reported_at_s = now_s
        if self._steps is None:
            self._number, self._first_told_s = self._number + 1, now_s
            self._steps = {rank: beat.steps for rank, beat in beats.items()}
            self._waiters = frozenset(rank for rank, beat in beats.items() if beat.waiting_since_s is not None)
        return msgspec.structs.replace(longest, number=self._number)

    def _awake_s(self, since_s: float, now_s: float) -> float:
        """Return how much time has passed since then, without that in which nobody could run."""
        stood_s = sum(min(length_s, over_s - since_s) for over_s, length_s in self._standstills if over_s > since_s)
        return now_s - since_s - stood_s

    def _note_end(self, beats: Mapping[int, RingHeartbeat], failed: Set[int]) -> None:
        """Note whether the wait that was reported is over. That a threshold has grown meanwhile does not end it."""
        if self._steps is None:
            return
        since_s = [beat.waiting_since_s for beat in beats.values() if beat.waiting_since_s is not None]
        if not self._waiters.isdisjoint(failed):
            return
        if min(since_s, default=float("inf")) > self._first_told_s:
            self.over, self._steps = self._number, None
            self._reported_at_s, self._pause_s = None, self._floor_s
        elif _all_go(self._steps, beats):
            self.over, self._steps = self._number, None


def _all_go(before: Mapping[int, int], beats: Mapping[int, RingHeartbeat]) -> bool:
    """Whether each rank has made steps since it had made so many; a rank that cannot be read says nothing."""
    return before.keys() <= beats.keys() and all(
        beats[rank].steps >= steps + GOING_STEPS for rank, steps in before.items()
    )
