"""The agent's questions that wait until what was copied before them is hashed."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

#: How long a look waits for parts that are copied and not hashed yet.
LOOK_S = 5.0


class _Look(msgspec.Struct, kw_only=True):
    number: int
    until_s: float
    awaited: set[int]
    """Buffers that were being hashed when it was asked for."""


class Looks:
    """Those without an answer."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._waiting: list[_Look] = []

    def ask(self, number: int, hashing: Collection[int]) -> None:
        """Take a question in."""
        self._waiting.append(_Look(number=number, until_s=self._now_s() + LOOK_S, awaited=set(hashing)))

    def is_hashed(self, buffer: int) -> None:
        """Note that a buffer need not be waited for."""
        for look in self._waiting:
            look.awaited.discard(buffer)

    def take_due(self) -> list[int]:
        """Return the questions to answer now; they are not asked any more."""
        now_s = self._now_s()
        due = [look for look in self._waiting if not look.awaited or look.until_s <= now_s]
        self._waiting = [look for look in self._waiting if look not in due]
        return [look.number for look in due]

    def wait_s(self) -> float | None:
        """Return how long until the next is due; None: there is none."""
        now_s = self._now_s()
        return min((max(0.0, look.until_s - now_s) for look in self._waiting), default=None)
