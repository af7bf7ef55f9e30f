"""Which worker of a job is started again because it is stopped: one alone, and one that others wait for. Pure.

Who stops several workers means it, or is a scheduler. One that nobody waits for does no harm: what it has taken goes to
others when its lease is over.
"""

from __future__ import annotations

from collections.abc import Collection

from robust_run.orchestrator.model.words import RankStopped
from robust_run.orchestrator.rules.stopped_looks import LOOK_S, STOPPED_S, TELL_AGAIN_S

#: What was told longer ago does not hold any more.
HOLDS_S = 2 * TELL_AGAIN_S + 2 * LOOK_S
#: Workers that were stopped in the same moment are found within so long of each other.
TOGETHER_S = 5.0


class StoppedBook:
    """All workers that are stopped now."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[RankStopped, float, float]] = {}
        """By worker: what was told last, since when it is told, and when it was."""

    def take(self, event: RankStopped, now_s: float) -> None:
        """A worker is, or still is, stopped."""
        _, since_s, last_s = self._told.get(event.worker, (event, now_s, now_s))
        self._told[event.worker] = (event, now_s if now_s - last_s > HOLDS_S else since_s, now_s)

    def held_up(self, awaited: Collection[str], now_s: float) -> RankStopped | None:
        """Return who is certain to hold up others; None: nobody. `awaited`: for whom somebody has been waiting for long."""
        self._told = {name: each for name, each in self._told.items() if now_s - each[2] <= HOLDS_S}
        if len(self._told) != 1:
            return None
        ((name, (event, since_s, _)),) = self._told.items()
        is_alone = now_s - since_s >= TOGETHER_S and event.for_s >= STOPPED_S
        return event if is_alone and name in awaited else None
