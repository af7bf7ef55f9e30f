"""Clock offset of an agent: what the controller's monotonic clock is ahead of the agent's, from when its heartbeats came. Pure.

A message tells too much, by the time that it took, so the quickest one tells best, and a slow one is not believed. A clock that
stood still makes all messages look slow from then on: so does a virtual machine that is moved, or suspended for less than a
lease. After `BEATS` heartbeats of which none was as quick as those before, the quickest of these counts.
"""

from __future__ import annotations

#: How much larger each heartbeat may make the offset at once: clocks drift apart far slower than that.
CREEP_S = 0.001
#: So many heartbeats in a row are not all slow by chance; a network that is slow for longer is told from a clock by nothing.
BEATS = 15


class ClockOffset:
    """One agent's, since it joined. Ten thousand of these take a heartbeat a second."""

    __slots__ = ("_quickest_s", "_slow", "ahead_s")

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        """Add it to a time of the agent's. Too large by the time that a message takes."""
        self._slow, self._quickest_s = 0, float("inf")
        """Heartbeats in a row that came later than is known to be possible, and what the quickest of them told."""

    def take(self, ahead_s: float) -> None:
        """Take in what a heartbeat tells: when it came, less when it was sent, each by the clock there."""
        if ahead_s <= self.ahead_s + CREEP_S:
            self.ahead_s = ahead_s
            self._slow, self._quickest_s = 0, float("inf")
            return
        self.ahead_s += CREEP_S
        self._slow, self._quickest_s = self._slow + 1, min(self._quickest_s, ahead_s)
        if self._slow >= BEATS:
            self.ahead_s = max(self.ahead_s, self._quickest_s)
            self._slow, self._quickest_s = 0, float("inf")
