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
#: Heartbeats that come within so short a time were held up together by a network, and are no more slow than one of them is.
TOGETHER_S = 0.05


class ClockOffset:
    """One agent's, since it joined. Ten thousand of these take a heartbeat a second."""

    __slots__ = ("_counted_s", "_quickest_s", "_slow", "ahead_s")

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        """Add it to a time of the agent's. Too large by the time that a message takes."""
        self._slow, self._quickest_s = 0, float("inf")
        """Heartbeats in a row that came later than is known to be possible, and what the quickest of them told."""
        self._counted_s = float("-inf")
        """When the newest of them came that was counted."""

    def take(self, sent_s: float, came_s: float) -> None:
        """Take in a heartbeat: when it was sent, by the agent's clock, and when it came, by the controller's."""
        ahead_s = came_s - sent_s
        if ahead_s <= self.ahead_s + CREEP_S:
            self.ahead_s = ahead_s
            self._slow, self._quickest_s = 0, float("inf")
            return
        self.ahead_s += CREEP_S
        self._quickest_s = min(self._quickest_s, ahead_s)
        if came_s - self._counted_s < TOGETHER_S:
            return
        self._slow, self._counted_s = self._slow + 1, came_s
        if self._slow >= BEATS:
            self.ahead_s = max(self.ahead_s, self._quickest_s)
            self._slow, self._quickest_s = 0, float("inf")
