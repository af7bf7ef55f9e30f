"""Queues as workers use them: what they ask for, how long an answer may take, what is taken from those that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from robust_run.clock import Clock
from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.model.queue_state import Answer as QueueAnswer
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.queue.waiting import Waiting
from robust_run.orchestrator.rules.elastic.window import DemandBook
from robust_run.orchestrator.rules.idle import IdleBook
from robust_run.orchestrator.rules.queue_core import counts, leased_to, next_expiry_s, position
from robust_run.orchestrator.rules.traffic import TrafficBook
from robust_run.roles.queue_words import GiveBack, Put, QueueEvent, Release, Renew, Took
from robust_run.roles.words import Answer, Me, PositionCall, QueueCall

MOST_WAIT_S = 60.0
"""An answer waits no longer; who wants to wait longer asks again."""


class QueueService:
    """All queues of a job, and what is measured at them. One event loop."""

    def __init__(self, queues: QueueBook, clock: Clock) -> None:
        self.queues = queues
        self._clock = clock
        self.idle = IdleBook()
        self.traffic = TrafficBook()
        self.demand = DemandBook()
        self._waiting: dict[str, Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Answer nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def consumers(self) -> Iterable[str]:
        """Return who has something of a queue."""
        return self.queues.consumers()

    def has_takers(self, name: str) -> bool:
        """Whether somebody waits for an item of a queue."""
        return name in self._waiting and self._waiting[name].has_takers

    def came(self, consumer: str) -> None:
        """A new process of a worker is here."""
        self.idle.came(consumer, self._clock.monotonic_s())
        self.demand.came(consumer, self._clock.monotonic_s())

    def forget(self, worker: Worker) -> None:
        """Nothing that this connection asked for is given to it any more."""
        for waiting in self._waiting.values():
            waiting.forget(worker)

    def give_up(self, consumer: str) -> None:
        """A worker is gone: what it worked on is given to others."""
        now_s = self._clock.monotonic_s()
        self.idle.went(consumer, now_s)
        self.traffic.went(consumer)
        self.demand.went(consumer)
        self.queues.consumer_gone(consumer, now_s)
        self._go_on()

    def reconcile(self, me: Me, holds: Mapping[str, tuple[int, ...]]) -> None:
        """A worker is back, or new in its place: what is leased to it, and it does not hold, waits again."""
        now_s = self._clock.monotonic_s()
        for name, queue in self.queues.queues.items():
            held = frozenset(holds.get(name, ()))
            leased = leased_to(queue.state, me.consumer)
            lacks = tuple(n for n in leased if n not in held)
            if lacks:
                queue.tell(GiveBack(consumer=me.consumer, numbers=lacks), now_s)
            if len(lacks) < len(leased):
                queue.tell(Renew(consumer=me.consumer), now_s)
        self._go_on()

    def position(self, worker: Worker, me: Me, call: PositionCall) -> None:
        """Answer what a worker has kept of a queue, and how full that is."""
        state = self.queues.open(call.queue, self._clock.monotonic_s()).state
        found = position(state, me.consumer)
        worker.send(Answer(number=call.number, position=found, counts=counts(state)))

    def hear(self, worker: Worker, me: Me, call: QueueCall) -> None:
        """Take in what a worker asks of a queue; it is answered once there is something, or it has waited long enough."""
        now_s = self._clock.monotonic_s()
        waits = call.event if isinstance(call.event, (Took, Put)) else None
        if waits is not None:
            self.idle.asks(me.consumer, now_s)
            self.traffic.asks(call.queue, me.consumer, waits, now_s)
        self.demand.asks(call.queue, me.consumer, call.event, now_s)

        def answer(found: QueueAnswer) -> None:
            if waits is not None:
                self._answered(call.queue, me.consumer, waits, found)
            worker.send(
                Answer(
                    number=call.number,
                    items=found.items,
                    accepted=found.accepted,
                    lost=found.lost,
                    error=found.flaw,
                )
            )

        event = _of(call.event, me.consumer)
        wait_s = min(call.wait_s, MOST_WAIT_S) if call.wait_s > 0 else 0.0
        self._at(call.queue, now_s).tell(event, now_s, wait_s, worker, answer)
        self._wake_later()

    def _answered(self, queue: str, consumer: str, waits: Took | Put, found: QueueAnswer) -> None:
        then_s = self._clock.monotonic_s()
        got = bool(found.items) if isinstance(waits, Took) else found.accepted
        self.idle.answered(consumer, then_s)
        self.traffic.answered(queue, consumer, waits, then_s, got=got)
        numbers = [item.number for item in found.items]
        self.demand.answered(queue, consumer, waits, then_s, got=got, numbers=numbers)

    def _at(self, name: str, now_s: float) -> Waiting:
        if name not in self._waiting:
            self._waiting[name] = Waiting(self.queues.open(name, now_s))
        return self._waiting[name]

    def _go_on(self) -> None:
        now_s = self._clock.monotonic_s()
        for waiting in self._waiting.values():
            waiting.go_on(now_s)
        self._wake_later()

    def _wake_later(self) -> None:
        """See to it that who has waited long enough is answered, and that leases that are over are given to others."""
        if self._timer is not None:
            self._timer.cancel()
        moments = [each.next_s() for each in self._waiting.values()]
        moments += [next_expiry_s(each.queue.state) for each in self._waiting.values() if each.has_takers]
        at_s = min((each for each in moments if each is not None), default=None)
        if at_s is None:
            self._timer = None
            return
        delay_s = max(at_s - self._clock.monotonic_s(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s + 0.001, self._go_on)


def _of(event: QueueEvent, consumer: str) -> QueueEvent:
    """Return an event as what the worker that sent it does: nobody acts for another."""
    if isinstance(event, Put):
        return msgspec.structs.replace(event, producer=consumer)
    return event if isinstance(event, Release) else msgspec.structs.replace(event, consumer=consumer)
