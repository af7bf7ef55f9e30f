"""Lateness of a process: how much later than due its timers fired at worst in the last minute. Pure.

The worst of a minute, not the mean: a machine that stood still for 3 s once may do so again. Growing is immediate, shrinking
takes that minute.
"""

from __future__ import annotations

#: How long the worst is remembered, and in slots of which length.
WINDOW_S = 60.0
SLOT_S = 10.0


class Lateness:
    """What was seen of one process, or of the way to it. Ten thousand of these are asked every second, so the worst is kept."""

    __slots__ = ("_slots", "_until_s", "_worst_s")

    def __init__(self) -> None:
        self._slots: list[tuple[float, float]] = []
        """When a slot began, and the worst in it; the newest last."""
        self._worst_s = 0.0
        """Of all slots, until the first of them is too old."""
        self._until_s = float("inf")

    def note(self, late_s: float, now_s: float) -> None:
        """Note that something was so late."""
        slots = self._slots
        if slots and now_s - slots[-1][0] < SLOT_S:
            if late_s > slots[-1][1]:
                slots[-1] = (slots[-1][0], late_s)
                self._worst_s = max(self._worst_s, late_s)
            return
        slots.append((now_s, max(late_s, 0.0)))
        self._look(now_s)

    def worst_s(self, now_s: float) -> float:
        """Return the worst of the last minute, 0.0 if nothing was late."""
        if now_s >= self._until_s:
            self._look(now_s)
        return self._worst_s

    def _look(self, now_s: float) -> None:
        kept_s = now_s - WINDOW_S - SLOT_S
        self._slots = [slot for slot in self._slots if slot[0] > kept_s]
        self._worst_s = max((late_s for _, late_s in self._slots), default=0.0)
        self._until_s = self._slots[0][0] + WINDOW_S + SLOT_S if self._slots else float("inf")
