"""What a reader takes of a checkpoint that is fetched ahead: a unit that is there, or comes in time. It raises nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from robust_run.ckpt_io.ahead.area import HERE, OFF, OpenArea, UnitTable
from robust_run.ckpt_io.rules.layout import FileLayout
from robust_run.store.cancelling import Cancellation

VARIABLE = "ROBUST_CKPT_FETCHED"
"""Where workers find it: `/proc/PID/fd/N` of the process that fetches."""
#: Nothing at all has come for so long: who fetches is stuck, and the store is read instead.
STALL_S = 15.0
_FIRST_PAUSE_S, _PAUSE_S, _ALIVE_S = 0.002, 0.1, 0.25


class Fetched:
    """One checkpoint that is being fetched. Safe for threads."""

    def __init__(
        self, open_area: Callable[[], OpenArea], clock: Callable[[], float] = time.monotonic, stall_s: float = STALL_S
    ) -> None:
        """Raises OSError, ValueError, as `open_area` does."""
        self._open, self._clock, self._stall_s = open_area, clock, stall_s
        self._lock = threading.Lock()
        self._area = open_area()
        self._left: list[OpenArea] = []
        self._is_off = False
        self._came, self._came_at_s = -1, clock()

    def take(self, file: int, unit: int, buffers: Sequence[memoryview], cancel: Cancellation | None) -> bool:
        """Fill the buffers with a unit as it is stored; False: read it from the store. It is not verified."""
        try:
            return self._take(file, unit, buffers, cancel)
        except (OSError, ValueError):  # it was closed meanwhile, or the memory is gone
            self._is_off = True
            return False

    def _take(self, file: int, unit: int, buffers: Sequence[memoryview], cancel: Cancellation | None) -> bool:
        number, asked, pause_s = self._area.table.number(file, unit), False, _FIRST_PAUSE_S
        looked_s = self._clock()
        while not self._is_off:
            area = self._begun()
            state = area.state(number)
            if state == HERE:
                return area.read(number, buffers)
            if state == OFF or (cancel is not None and cancel.cancelled):
                return False
            if not asked and area.is_begun:
                area.want(number)
                asked = True
            now_s = self._clock()
            if now_s - looked_s >= _ALIVE_S:
                looked_s = now_s
                self._is_off = self._is_off or self._is_stuck(area, now_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S)
        return False

    def _begun(self) -> OpenArea:
        """Return the area; open it again as long as it is not known which checkpoint it is of."""
        if self._area.is_begun:
            return self._area
        with self._lock:
            if not self._area.is_begun:
                try:
                    area = self._open()
                except (OSError, ValueError):  # of another checkpoint, or gone
                    self._is_off = True
                    return self._area
                self._left.append(self._area)
                self._area = area
            return self._area

    def _is_stuck(self, area: OpenArea, now_s: float) -> bool:
        with self._lock:
            came = area.came()
            if came != self._came:
                self._came, self._came_at_s = came, now_s
                return False
            return now_s - self._came_at_s >= self._stall_s or not area.is_alive()

    def close(self) -> None:
        """Let go of it."""
        self._is_off = True
        for area in (*self._left, self._area):
            area.close()


def fetched_for(header: bytes, layouts: Sequence[FileLayout], env: Mapping[str, str] = os.environ) -> Fetched | None:
    """Return what is fetched of a checkpoint, by its manifest's first line; None: nothing is, as far as this process was told."""
    path = env.get(VARIABLE, "")
    if not path:
        return None
    table = UnitTable(layouts)
    try:
        return Fetched(lambda: OpenArea(path, table, header))
    except (OSError, ValueError):
        return None
