"""Lateness of a process: how much later than due its timers fired at worst in the last minute. Pure.

The worst of a minute, not the mean: a machine that stood still for 3 s once may do so again. Growing is immediate, shrinking
takes that minute.
"""

from __future__ import annotations

from collections import deque

#: How long the worst is remembered, and in slots of which length.
WINDOW_S = 60.0
SLOT_S = 10.0


class Lateness:
    """What was seen of one process, or of the way to it."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[tuple[float, float]] = deque()
        """When a slot began, and the worst in it; the newest last."""

    def note(self, late_s: float, now_s: float) -> None:
        """Note that something was so late."""
        slots = self._slots
        if slots and now_s - slots[-1][0] < SLOT_S:
            if late_s > slots[-1][1]:
                slots[-1] = (slots[-1][0], late_s)
            return
        slots.append((now_s, max(late_s, 0.0)))
        while slots[0][0] <= now_s - WINDOW_S - SLOT_S:
            slots.popleft()

    def worst_s(self, now_s: float) -> float:
        """Return the worst of the last minute, 0.0 if nothing was late."""
        return max((late_s for began_s, late_s in self._slots if began_s > now_s - WINDOW_S - SLOT_S), default=0.0)
