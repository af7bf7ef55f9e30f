"""How often the journal has what sensors say again and again: ever more seldom, so that what lasts for months fills no disk.

The core hears all of it: rules count alerts, and what was seen lately explains a failure. On record is the first of it, what
something follows from, then again after twice as long each time, an hour at most, and its end. Pure.
"""

from __future__ import annotations

import re

import msgspec

from robust_run.launcher.core.diagnosis import blindness
from robust_run.launcher.model.health_events import HealthSeen

#: The longest time between two lines about the same. `robust status` shows what was said within an hour (`views.health_views`).
RAREST_S = 3600.0
#: Things that are remembered; those that were heard of longest ago are forgotten first, and are news when they come again.
MOST = 2000

_NUMBER = re.compile(r"[0-9]+([.][0-9]+)?")

Place = tuple[str, str, str]
"""Node, name of the event, subject: what is said to be over by these."""
Same = tuple[str, str, str, str, int, str]
"""What two events must have in common so that the second tells nothing new: the place, the kind, the number, the words."""


class _Heard(msgspec.Struct):
    first_s: float
    written_s: float
    heard_s: float


class Repeats:
    """What this controller has heard of sensors, and has put on record."""

    def __init__(self) -> None:
        self._heard: dict[Same, _Heard] = {}
        self._over: dict[Place, bool] = {}
        """Whether the journal's newest line about a place says that it is over."""
        self._left_out: dict[Place, int] = {}

    def on_record(self, seen: HealthSeen, now_s: float, *, has_consequences: bool) -> HealthSeen | None:
        """Return what the journal is to have of this, with how much was left out before it; None: nothing."""
        event = seen.event
        if event.name == blindness.PROCESS:  # what was said before it nobody takes back, and what is still so is news
            self._forget(seen.node)
            return seen
        place = (seen.node, event.name, event.subject)
        if event.kind == "clear":
            is_due = not self._over.get(place, False)
        else:
            is_due = self._is_due((*place, event.kind, event.number, _words(event.detail)), now_s)
        if not is_due and not has_consequences:
            _put(self._left_out, place, self._left_out.get(place, 0) + 1)
            return None
        _put(self._over, place, event.kind == "clear")
        left_out = self._left_out.pop(place, 0)
        return msgspec.structs.replace(seen, left_out=left_out) if left_out else seen

    def _forget(self, node: str) -> None:
        self._heard = {same: known for same, known in self._heard.items() if same[0] != node}
        self._over = {place: is_over for place, is_over in self._over.items() if place[0] != node}
        self._left_out = {place: count for place, count in self._left_out.items() if place[0] != node}

    def _is_due(self, same: Same, now_s: float) -> bool:
        known = self._heard.get(same)
        if known is None or now_s - known.heard_s > RAREST_S:
            _put(self._heard, same, _Heard(now_s, now_s, now_s))
            return True
        known.heard_s = now_s
        _put(self._heard, same, known)
        if now_s - known.written_s < min(known.written_s - known.first_s, RAREST_S):
            return False
        known.written_s = now_s
        return True


def _put(kept: dict, key: tuple, value: object) -> None:  # type: ignore[type-arg]
    """Keep it as the newest, and forget the oldest where there is too much."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MOST:
        del kept[next(iter(kept))]


def _words(text: str) -> str:
    """Return what is the same in all that is said of the same: numbers change, and how long it has lasted."""
    return _NUMBER.sub("#", text).removesuffix(", for # s now")
