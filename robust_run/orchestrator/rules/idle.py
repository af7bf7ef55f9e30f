"""How much of their time workers wait at queues: for an item, or for room. A figure for people; nothing follows from it. Pure.

T-PPO (arXiv 2506.15050) is about this share: rollouts that wait for the longest response of a batch. Waits elsewhere, in a
collective or for another role's answer, are not among it.
"""

from __future__ import annotations

from collections.abc import Mapping


class _Worker:
    __slots__ = ("came_s", "open", "since_s", "waited_s")

    def __init__(self, now_s: float) -> None:
        self.came_s = now_s
        self.open = 0
        """Requests that wait, of all its threads."""
        self.since_s = now_s
        """When the first of them began to."""
        self.waited_s = 0.0

    def waits(self, now_s: float) -> float:
        """Return for how long it has waited by now."""
        return self.waited_s + (now_s - self.since_s if self.open else 0.0)


class IdleBook:
    """Workers by what queues know them by, `rollout/3:0`."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._gone: dict[str, tuple[float, float]] = {}
        """Of workers that are gone, by member: for how long they waited, and were here."""

    def came(self, consumer: str, now_s: float) -> None:
        """One is here, or here again: its time begins anew."""
        self.went(consumer, now_s)
        self._workers[consumer] = _Worker(now_s)

    def went(self, consumer: str, now_s: float) -> None:
        """One is gone."""
        worker = self._workers.pop(consumer, None)
        if worker is not None:
            _add(self._gone, consumer, worker, now_s)

    def totals(self, now_s: float) -> dict[str, tuple[float, float]]:
        """Return, by member, for how many seconds its workers have waited, and have been here, all there ever were."""
        found = dict(self._gone)
        for consumer, worker in self._workers.items():
            _add(found, consumer, worker, now_s)
        return found

    def asks(self, consumer: str, now_s: float) -> None:
        """One asks for an item, or for room."""
        worker = self._workers.get(consumer)
        if worker is not None:
            worker.since_s = worker.since_s if worker.open else now_s
            worker.open += 1

    def answered(self, consumer: str, now_s: float) -> None:
        """It has its answer."""
        worker = self._workers.get(consumer)
        if worker is not None and worker.open:
            worker.open -= 1
            worker.waited_s += 0.0 if worker.open else now_s - worker.since_s

    def shares(self, now_s: float) -> Mapping[str, float]:
        """Return, by member, what share of their time its ranks have waited since they came."""
        found: dict[str, list[float]] = {}
        for consumer, worker in self._workers.items():
            if now_s > worker.came_s:
                share = min(worker.waits(now_s) / (now_s - worker.came_s), 1.0)
                found.setdefault(consumer.rpartition(":")[0], []).append(share)
        return {member: sum(shares) / len(shares) for member, shares in found.items()}


def _add(totals: dict[str, tuple[float, float]], consumer: str, worker: _Worker, now_s: float) -> None:
    member = consumer.rpartition(":")[0]
    waited_s, here_s = totals.get(member, (0.0, 0.0))
    totals[member] = (waited_s + worker.waits(now_s), here_s + now_s - worker.came_s)
