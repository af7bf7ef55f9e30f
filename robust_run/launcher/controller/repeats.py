"""How often the journal has what sensors say again and again: ever more seldom, so that what lasts for months fills no disk.

The core hears all of it: rules count alerts, and what was seen lately explains a failure. On record is the first of it, what
something follows from, then again after twice as long each time, an hour at most, and its end. Who takes the job over knows the
rest by the journal, too: before something that follows from anything stands what was left out lately, and that something goes on
that was said to be over. Pure.
"""

from __future__ import annotations

import re

import msgspec

from robust_run.launcher.core.diagnosis import blindness
from robust_run.launcher.model.health_events import HealthSeen

#: The longest time between two lines about the same. `robust status` shows what was said within an hour (`views.health_views`).
RAREST_S = 3600.0
#: What was said to be over and has lasted so long since is on record.
LASTS_S = 300.0
#: What was left out so lately may have to do with what happens: nothing that was seen counts for longer (`diagnosis.health`).
RECALLED_S = 1800.0
#: Things that are remembered; those that were heard of longest ago are forgotten first, and are news when they come again.
MOST = 2000

_THINGS = "gpu|rank|ranks|port|nvlink|device|lane|element|elements|cpu|node|socket|slot|bank|channel|chan|dimm|mc"
_NAMED = rf"[0-9a-f]{{4}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}|(?:{_THINGS})[ #]{{1,2}}[0-9]+"
_NUMBER = re.compile(rf"(?P<named>{_NAMED})|(?<![a-z0-9_])(?:0x[0-9a-f]+|[0-9]+(?:[.][0-9]+)?)", re.IGNORECASE)

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
        self._since_s: dict[Place, float] = {}
        """When what is said of a place began."""
        self._left_out: dict[Place, int] = {}
        self._untold: dict[Same, tuple[HealthSeen, float]] = {}
        """The newest of each that was left out since the line about it, and when; in order."""

    def on_record(self, seen: HealthSeen, now_s: float, *, has_consequences: bool) -> list[HealthSeen]:
        """Return what the journal is to have now, with how much was left out before it: this at last, or nothing."""
        event = seen.event
        if event.name == blindness.PROCESS:  # what was said before it nobody takes back, and what is still so is news
            before = self.recalled(now_s)
            self._forget(seen.node)
            return [*before, seen]
        before = self.recalled(now_s) if has_consequences else []
        place = (seen.node, event.name, event.subject)
        same = (*place, event.kind, event.number, _words(event.detail))
        if event.kind == "clear":
            is_due = not self._over.get(place, False)
            self._since_s.pop(place, None)
        else:
            is_due = self._is_due(same, now_s)
            since_s = self._since_s.get(place, now_s)
            _put(self._since_s, place, since_s)
            is_due = is_due or (self._over.get(place, False) and now_s - since_s >= LASTS_S)
        if not is_due and not has_consequences:
            _put(self._left_out, place, self._left_out.get(place, 0) + 1)
            _put(self._untold, same, (seen, now_s))
            return []
        return [*before, self._told(seen, same)]

    def recalled(self, now_s: float) -> list[HealthSeen]:
        """Return what was left out and may have to do with what happens now."""
        untold, self._untold = self._untold, {}
        lines = []
        for same, (seen, heard_s) in untold.items():
            is_known = seen.event.kind == "clear" and self._over.get(same[:3], False)
            if now_s - heard_s <= RECALLED_S and not is_known:
                self._over[same[:3]] = seen.event.kind == "clear"
                self._left_out[same[:3]] = self._left_out.get(same[:3], 1) - 1  # this is told
                lines.append((seen, same))
        return [msgspec.structs.replace(self._told(*line), is_recalled=True) for line in lines]

    def _told(self, seen: HealthSeen, same: Same) -> HealthSeen:
        place = same[:3]
        self._untold.pop(same, None)
        _put(self._over, place, seen.event.kind == "clear")
        left_out = self._left_out.pop(place, 0)
        return msgspec.structs.replace(seen, left_out=left_out) if left_out else seen

    def _forget(self, node: str) -> None:
        self._heard = {same: known for same, known in self._heard.items() if same[0] != node}
        self._over = {place: is_over for place, is_over in self._over.items() if place[0] != node}
        self._since_s = {place: since_s for place, since_s in self._since_s.items() if place[0] != node}
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
    """Return what is the same in all that is said of the same: numbers change, and how long it has lasted; names do not, with
    whatever numbers they have (`mlx5_0`, `GPU 3`).
    """
    return _NUMBER.sub(lambda found: found["named"] or "#", text).removesuffix(", for # s now")
