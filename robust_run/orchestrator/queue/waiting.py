"""Consumers that wait for items, and producers that wait for room: who is answered when a queue has changed. No sockets.

Whoever asked first is answered first. A producer that waits is asked nothing: its item is put when there is room.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run.orchestrator.model.queue_state import Answer
from robust_run.orchestrator.queue.book import Kept
from robust_run.roles.queue_words import Put, QueueEvent, Took


class _Waiting:
    __slots__ = ("answer", "event", "key", "until_s")

    def __init__(self, event: Put | Took, until_s: float, key: object, answer: Callable[[Answer], None]) -> None:
        self.event, self.until_s, self.key, self.answer = event, until_s, key, answer


class Waiting:
    """Those who wait at one queue."""

    def __init__(self, queue: Kept) -> None:
        self.queue = queue
        self._takers: list[_Waiting] = []
        self._putters: list[_Waiting] = []

    def tell(
        self, event: QueueEvent, now_s: float, wait_s: float, key: object, answer: Callable[[Answer], None]
    ) -> None:
        """Take in an event; answer now, or within `wait_s`. `key`: whose it is, for `forget`."""
        if isinstance(event, Took):
            self._takers.append(_Waiting(event, now_s + wait_s, key, answer))
        elif isinstance(event, Put):
            self._putters.append(_Waiting(event, now_s + wait_s, key, answer))
        else:
            answer(self.queue.tell(event, now_s))
        self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        """Answer all who can be answered, or have waited long enough."""
        while self._put_some(now_s) | self._take_some(now_s):
            pass

    def forget(self, key: object) -> None:
        """Somebody is gone: nothing is given to him any more."""
        self._takers = [each for each in self._takers if each.key is not key]
        self._putters = [each for each in self._putters if each.key is not key]

    @property
    def has_takers(self) -> bool:
        """Whether anybody waits for items."""
        return bool(self._takers)

    def next_s(self) -> float | None:
        """Return when somebody has waited long enough."""
        return min((each.until_s for each in (*self._takers, *self._putters)), default=None)

    def _put_some(self, now_s: float) -> bool:
        """Who asked first is let in first: a small item does not pass a large one that waits for room."""
        changed, left = False, list[_Waiting]()
        for each in self._putters:
            answer = Answer(accepted=False) if left else self.queue.tell(each.event, now_s)
            if answer.accepted or answer.flaw or each.until_s <= now_s:
                changed |= answer.accepted and not answer.is_again
                each.answer(answer)
            else:
                left.append(each)
        self._putters = left
        return changed

    def _take_some(self, now_s: float) -> bool:
        changed, left = False, []
        for each in self._takers:
            answer = self.queue.tell(each.event, now_s)
            changed |= bool(answer.items or answer.stale)
            if answer.items or each.until_s <= now_s:
                each.answer(answer)
            else:
                left.append(each)
        self._takers = left
        return changed
