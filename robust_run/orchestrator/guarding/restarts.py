"""Whether a leader that has ended is started again. Pure.

A leader that ran for `STEADY_S` has not failed in a row: what ended it was no fault that comes back at once.
"""

from __future__ import annotations

STEADY_S = 60.0
MOST_IN_A_ROW = 3


class Restarts:
    """Of one job."""

    def __init__(self) -> None:
        self.count = 0
        """Ends in a row."""
        self._started_at_s = 0.0

    def started(self, now_s: float) -> None:
        """A leader was started."""
        self._started_at_s = now_s

    def may_start(self, now_s: float) -> bool:
        """It has ended: whether another may be started."""
        self.count = 1 if now_s - self._started_at_s >= STEADY_S else self.count + 1
        return self.count <= MOST_IN_A_ROW
