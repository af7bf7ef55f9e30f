"""How much one sensor may say in a minute: a flood of small things must not hide what takes a node out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from robust_run.health.rules.table import DEFAULTS
from robust_run.health.sensors.types import Event

#: One sensor says at most so much in a minute; what a tree or a log makes it say beyond that is counted.
MOST_EVENTS_PER_MINUTE = 60
#: In any case the first of each name are said, for so many names: a file of rules may evict for any of them.
FIRST_OF_A_NAME, MOST_NAMES = 5, 64


def evicts(name: str) -> bool:
    """Return whether an event of this name may take a node out, as the rules are by themselves."""
    while name and name not in DEFAULTS:
        name = name.rpartition(".")[0]
    return bool(name) and DEFAULTS[name].rung == "evict"


class Budget:
    """What one sensor has said in this minute."""

    def __init__(self) -> None:
        self._minute_s = float("-inf")
        self._said: Counter[str] = Counter()
        self._small = self._grave = 0
        self._has_told = False

    def fit(self, events: Iterable[Event], now_s: float) -> tuple[tuple[Event, ...], int]:
        """Return the events that may be said, and how many are left out where that is to be told: once in a minute."""
        if now_s - self._minute_s >= 60:
            self._minute_s, self._small, self._grave, self._has_told = now_s, 0, 0, False
            self._said.clear()
        kept, left = [], 0
        for event in events:
            if self._has_room(event):
                kept.append(event)
            else:
                left += 1
        is_news = left > 0 and not self._has_told
        self._has_told = self._has_told or is_news
        return tuple(kept), left if is_news else 0

    def _has_room(self, event: Event) -> bool:
        if event.kind == "alert" and evicts(event.name):
            self._grave += 1
            return self._grave <= MOST_EVENTS_PER_MINUTE
        is_known = event.name in self._said or len(self._said) < MOST_NAMES
        if is_known:
            self._said[event.name] += 1
        self._small += 1
        return self._small <= MOST_EVENTS_PER_MINUTE or (is_known and self._said[event.name] <= FIRST_OF_A_NAME)
