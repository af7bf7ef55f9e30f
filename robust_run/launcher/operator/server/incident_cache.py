"""Pages of incidents as they were drawn last: of 10,000 ranks one takes seconds, and hardly anything in it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from robust_run.report.pages.types import IncidentPage

#: Pages that are kept, the newest asked for.
MOST_KEPT = 8
#: While training has not gone on, a page says for how long it stands still: it is drawn anew after so many seconds.
OPEN_S = 10.0

_Key = tuple[object, ...]


class IncidentCache:
    """Drawn pages by number. One is drawn at a time, in a thread."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[_Key, float, bytes]] = {}
        self._drawing = asyncio.Lock()

    async def page(self, page: IncidentPage, scene_at: object, now_s: float, draw: Callable[[], bytes]) -> bytes:
        """Return the page, drawn anew only if what it shows has changed. `scene_at`: tells one scene from another."""
        incident = page.incident
        drawn = (page.drawn.life, page.drawn.accepts)
        key: _Key = (incident, page.incidents, page.attempt, page.following, scene_at, drawn)
        async with self._drawing:
            known = self._kept.pop(incident.id, None)
            if known is None or known[0] != key or (incident.resumed_s is None and now_s - known[1] >= OPEN_S):
                known = (key, now_s, await asyncio.to_thread(draw))
            self._kept[incident.id] = known
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return known[2]
