"""One line for people of all that a node fetches while its ranks start. Imported where something is fetched."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.store.rules import turns
from robust_run.store.turn_table import TurnTable, opened

#: It is said first, and again, after so long: most starts are over before.
FIRST_S, AGAIN_S = 5.0, 10.0


class FetchLine:
    """One node's."""

    def __init__(self, place: str, now_s: float, say: Callable[[str], None]) -> None:
        self._table: TurnTable | None = opened(place)
        self._say, self._say_at_s = say, now_s + FIRST_S
        self._before: dict[str, turns.Fetching] = {}

    def look(self, now_s: float) -> None:
        """Say it, if it is time; call once a second until the first step."""
        if self._table is None:
            return
        now = self._table.all()
        if now_s < self._say_at_s:
            self._before = self._before or {each.name: each for each in now}
            return
        self._say_at_s = now_s + AGAIN_S
        text = turns.line(now, self._before, now_s)
        self._before = {each.name: each for each in now}
        if text:
            self._say(text)
