"""What a server tells its keeper while it serves: that reads fail, and why; what is worth knowing. A keeper that does not listen
never holds it up.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

import msgspec

from robust_run.prefetch.server.config import Lost, Noted, ServerReady

#: How long the same reason is not told again: a source that is gone fails every read.
QUIET_S = 30.0
_MOST_REASONS = 64


class Telling:
    """The lines that a server writes: `ServerReady` once, then each `Lost` and `Noted`. Safe to use from threads."""

    def __init__(self, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`descriptor`: of a pipe; writing to it does not block from now on."""
        self._descriptor, self._clock = descriptor, clock
        self._lock = threading.Lock()
        self._is_ready = False
        self._told_s: dict[str, float] = {}
        self._early: list[Noted] = []
        os.set_blocking(descriptor, False)

    def ready(self, ready: ServerReady) -> None:
        """Say whether it can serve. Only the first time counts."""
        with self._lock:
            if not self._is_ready:
                self._is_ready = True
                for message in (ready, *self._early):
                    self._write(message)

    def trouble(self, sentence: str, reason: str) -> None:
        """Say that reads failed for a reason; "": that they wait. Not before `ready`, which then has the reason, and each
        reason only once in a while.
        """
        now_s = self._clock()
        with self._lock:
            if not self._is_ready or now_s < self._told_s.get(reason, -math.inf) + QUIET_S:
                return
            if len(self._told_s) >= _MOST_REASONS:
                self._told_s.clear()
            self._told_s[reason] = now_s
            self._write(Lost(sentence, they_wait=not reason))

    def note(self, sentence: str) -> None:
        """Say what is worth knowing and fails nothing, also before `ready`."""
        with self._lock:
            if self._is_ready:
                self._write(Noted(sentence))
            elif len(self._early) < _MOST_REASONS:
                self._early.append(Noted(sentence))

    def _write(self, message: object) -> None:
        try:
            os.write(self._descriptor, msgspec.json.encode(message) + b"\n")
        except OSError:
            return  # the keeper is gone, or so busy that the pipe is full: it has heard enough
