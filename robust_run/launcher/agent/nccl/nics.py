"""Half a second of this node's NICs in slices of 10 ms, taken in a thread: now and then, and in each window of two seconds for as
long as something is suspicious. Those are judged together: of the newest `MOST` of them, a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robust_run.health.signs.nic_bursts import NicBurst


#: Bursts of one suspicion that are kept.
MOST = 8


class NicLook:
    """The NICs of a node. `take`: takes half a second; `beside`: runs something beside."""

    def __init__(
        self,
        take: Callable[[], NicBurst | None] | None = None,
        beside: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._take = take or _take
        self._beside = beside or _beside
        self._is_busy = False
        self._past: NicBurst | None = None
        self._newest: list[NicBurst] = []
        self._news: tuple[str, ...] = ()

    def begin(self, *, suspicious: bool) -> None:
        """Look for half a second: to know what is usual, or to compare with that. Nothing if one goes on."""
        if not self._is_busy:
            self._is_busy = True
            self._beside(lambda: self._look(suspicious))

    def end(self) -> None:
        """Nothing is suspicious any more: what comes next is another matter."""
        self._newest = []

    def news(self) -> tuple[str, ...]:
        """Return what is unlike peers and before, once."""
        found, self._news = self._news, ()
        return found

    def _look(self, suspicious: bool) -> None:
        from robust_run.health.signs.nic_bursts import joined, judge

        try:
            found = self._take()
            if found is not None and suspicious:
                self._newest = [*self._newest, found][-MOST:]
                self._news = judge(joined(self._newest), self._past)
            elif found is not None:
                self._past, self._newest = found, []
        finally:
            self._is_busy = False


def _take() -> NicBurst | None:
    import time

    from robust_run.launcher.agent.nccl.nic_bursts import take

    return take("/sys", time.monotonic, time.sleep)


def _beside(what: Callable[[], None]) -> None:
    import threading

    threading.Thread(target=what, name="nics", daemon=True).start()
