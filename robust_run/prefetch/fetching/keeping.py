"""Keeping what came: blocks are put into the cache while its disk has room, and passed through while it has none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.answering import Answering
from robust_run.prefetch.room import Room
from robust_run.prefetch.rules.queue import FetchQueue


class Keeping:
    """The cache of one image, as those use it that fetch. Safe for threads."""

    def __init__(
        self,
        cache: Cache,
        block_bytes: int,
        keep_free_bytes: int,
        queue: FetchQueue,
        answering: Answering,
        work: threading.Condition,
        clock: Callable[[], float],
    ) -> None:
        """`keep_free_bytes`: what is left to others; `work`: see `Answering`, all are woken when there is room again."""
        self._cache, self._block_bytes, self._queue, self._answering = cache, block_bytes, queue, answering
        self._work, self._clock = work, clock
        self._room = Room(os.path.dirname(cache.folder), keep_free_bytes)

    @property
    def is_on(self) -> bool:
        """Whether blocks are kept."""
        return self._room.keeping

    def put(self, block: int, data: memoryview) -> tuple[bool, str]:
        """Keep a right block. Return whether it was, and what is to be said; "": nothing is."""
        if not self._room.keeping:
            return False, ""
        if self._cache.put(block, data):
            return True, ""
        return False, self._changed(lambda room, now_s: room.refused(self._cache.failure, self._missing_bytes(), now_s))

    def look(self) -> str:
        """Look how much of the disk is free. Return what is to be said of it; "": nothing is."""
        try:
            free_bytes = self._cache.free_bytes()
        except OSError:
            return ""
        return self._changed(lambda room, now_s: room.looked(free_bytes, self._missing_bytes(), now_s))

    def _changed(self, change: Callable[[Room, float], str]) -> str:
        with self._work:
            said = change(self._room, self._clock())
            if self._queue.keeping != self._room.keeping:
                self._queue.keeping = self._room.keeping
                if self._room.keeping:
                    self._answering.let_go()
                self._work.notify_all()
        return said

    def _missing_bytes(self) -> int:
        return self._queue.missing * self._block_bytes
