"""Since when somebody waits at which queue, beside what the queue knows of who fills and empties it: what `waits` follows. Pure.

A worker that waits asks again every now and then; its wait began with the first time, and is over when it gets something.
"""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.rules.waits import QueueNow
from robust_run.roles.queue_words import Put, Took

#: A worker whose last question was answered with nothing, and that has asked nothing since, waits no more after so long.
ASKS_AGAIN_S = 5.0


class _Traffic:
    __slots__ = ("asked", "since")

    def __init__(self) -> None:
        self.since: dict[str, float] = {}
        """Since when each waits."""
        self.asked: dict[str, tuple[bool, float]] = {}
        """Whether its newest question is open, and when that was asked or answered."""


class TrafficBook:
    """Of all queues."""

    def __init__(self) -> None:
        self._took: dict[str, _Traffic] = {}
        self._put: dict[str, _Traffic] = {}

    def asks(self, queue: str, consumer: str, event: Took | Put, now_s: float) -> None:
        """A worker asks for an item, or for room."""
        traffic = self._of(queue, event)
        traffic.since.setdefault(consumer, now_s)
        traffic.asked[consumer] = (True, now_s)

    def answered(self, queue: str, consumer: str, event: Took | Put, now_s: float, *, got: bool) -> None:
        """It has an answer. `got`: and what it asked for."""
        traffic = self._of(queue, event)
        traffic.asked[consumer] = (False, now_s)
        if got:
            traffic.since.pop(consumer, None)

    def went(self, consumer: str) -> None:
        """A worker is gone: it waits for nothing."""
        for traffic in (*self._took.values(), *self._put.values()):
            traffic.since.pop(consumer, None)
            traffic.asked.pop(consumer, None)

    def now(self, states: Mapping[str, QueueState], now_s: float) -> dict[str, QueueNow]:
        """Return what goes on at all queues."""
        return {name: self._now(name, state, now_s) for name, state in states.items()}

    def _now(self, name: str, state: QueueState, now_s: float) -> QueueNow:
        took, put = self._took.get(name, _Traffic()), self._put.get(name, _Traffic())
        leases: dict[str, tuple[int, float]] = {}
        kept_bytes = 0
        for held in state.held.values():
            kept_bytes += len(held.item.payload) if held.standing == "kept" else 0
            if held.standing == "leased":
                count, since_s = leases.get(held.consumer, (0, now_s))
                leases[held.consumer] = (count + 1, min(since_s, held.taken_s))
        return QueueNow(
            takers=_waiting(took, now_s),
            putters=_waiting(put, now_s),
            fillers=dict(state.put_by),
            drainers=dict(state.taken_by),
            leases=leases,
            kept_share=kept_bytes / state.limits.bytes,
        )

    def _of(self, queue: str, event: Took | Put) -> _Traffic:
        return (self._took if isinstance(event, Took) else self._put).setdefault(queue, _Traffic())


def _waiting(traffic: _Traffic, now_s: float) -> dict[str, float]:
    found = {}
    for consumer, since_s in traffic.since.items():
        is_open, at_s = traffic.asked.get(consumer, (False, 0.0))
        if is_open or now_s - at_s < ASKS_AGAIN_S:
            found[consumer] = since_s
    return found
