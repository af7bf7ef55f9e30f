"""What workers do at queues, window by window: how long they wait, and whether anything moves. Pure. See `elastic.demand`."""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.orchestrator.elastic.words import Measured, MemberDemand
from robust_run.roles.queue_words import Put, Took


class _Rank:
    __slots__ = ("came_s", "did", "has_put", "open", "waited_s")

    def __init__(self, now_s: float) -> None:
        self.came_s = now_s
        self.has_put = False
        self.open: dict[tuple[str, bool], list[float]] = {}
        """Requests that wait, by queue and whether for an item: since when each does."""
        self.waited_s: dict[tuple[str, bool], float] = {}
        self.did: dict[tuple[str, bool], int] = {}
        """How often it got what it asked for."""


class DemandBook:
    """Workers by what queues know them by, `rollout/3:0`."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Rank] = {}
        self._since_s: float | None = None

    def came(self, consumer: str, now_s: float) -> None:
        """One is here, or here again in a new process."""
        self._ranks[consumer] = _Rank(now_s)

    def went(self, consumer: str) -> None:
        """One is gone."""
        self._ranks.pop(consumer, None)

    def asks(self, queue: str, consumer: str, event: Took | Put, now_s: float) -> None:
        """A worker asks for an item, or for room."""
        rank = self._ranks.get(consumer)
        if rank is not None:
            rank.open.setdefault((queue, isinstance(event, Took)), []).append(now_s)

    def answered(self, queue: str, consumer: str, event: Took | Put, now_s: float, *, got: bool) -> None:
        """It has an answer. `got`: and what it asked for."""
        rank, key = self._ranks.get(consumer), (queue, isinstance(event, Took))
        if rank is None:
            return
        if rank.open.get(key):
            self._count(rank, key, rank.open[key].pop(), now_s)
        if got:
            rank.did[key] = rank.did.get(key, 0) + 1
            rank.has_put = rank.has_put or isinstance(event, Put)

    @staticmethod
    def _count(rank: _Rank, key: tuple[str, bool], since_s: float, now_s: float) -> None:
        rank.waited_s[key] = rank.waited_s.get(key, 0.0) + now_s - since_s

    def window(self, waiting: Mapping[str, int], now_s: float, *, is_starved: bool) -> Measured:
        """Return what happened since this was asked for last. `waiting`: items in each queue now."""
        since_s, self._since_s = self._since_s, now_s
        length_s = now_s - since_s if since_s is not None else 0.0
        ranks: dict[str, list[tuple[_Rank, dict[tuple[str, bool], float]]]] = {}
        for consumer, rank in self._ranks.items():
            for key, open_s in rank.open.items():
                for each_s in open_s:
                    self._count(rank, key, each_s, now_s)
                rank.open[key] = [now_s] * len(open_s)
            ranks.setdefault(consumer.rpartition(":")[0], []).append((rank, rank.waited_s))
            rank.waited_s = {}
        members = {name: _member(found, since_s, length_s) for name, found in ranks.items()}
        for found in ranks.values():
            for rank, _ in found:
                rank.did = {}
        return Measured(members=members, waiting=dict(waiting), length_s=length_s, is_starved=is_starved)


def _member(
    ranks: list[tuple[_Rank, dict[tuple[str, bool], float]]], since_s: float | None, length_s: float
) -> MemberDemand:
    shares: dict[tuple[str, bool], float] = {}
    did: dict[tuple[str, bool], int] = {}
    for rank, waited_s in ranks:
        for key, each_s in waited_s.items():
            share = min(each_s / length_s, 1.0) if length_s else 0.0
            shares[key] = shares.get(key, 0.0) + share / len(ranks)
        for key, count in rank.did.items():
            did[key] = did.get(key, 0) + count
    return MemberDemand(
        waits={queue: share for (queue, for_item), share in shares.items() if for_item},
        blocked={queue: share for (queue, for_item), share in shares.items() if not for_item},
        took={queue: count for (queue, for_item), count in did.items() if for_item},
        put={queue: count for (queue, for_item), count in did.items() if not for_item},
        has_put=any(rank.has_put for rank, _ in ranks),
        is_whole=since_s is not None and all(rank.came_s <= since_s for rank, _ in ranks),
    )
