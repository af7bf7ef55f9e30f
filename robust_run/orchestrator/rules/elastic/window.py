"""What workers do at queues, window by window: how long they wait, and whether anything moves. Pure. See `elastic.demand`.

A worker waits while a request of it does and it has nothing to work on: a thread that fetches the next items beside the work is
no idleness. Who waits for room still has the item that its own came from; so what is leased counts as work unless as many puts
wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from robust_run.orchestrator.model.demand_words import Measured, MemberDemand
from robust_run.roles.queue_words import Done, GiveBack, Keep, Put, QueueEvent, Restore, Took

_Key = tuple[str, bool]
"""A queue, and whether it is about taking an item."""


class _Rank:
    __slots__ = ("at_s", "came_s", "did", "has_put", "held", "idle_s", "open", "waited_s")

    def __init__(self, now_s: float) -> None:
        self.came_s = self.at_s = now_s
        self.has_put = False
        self.open: dict[_Key, int] = {}
        """Requests that wait."""
        self.held: set[tuple[str, int]] = set()
        """Items that it works on."""
        self.idle_s = 0.0
        self.waited_s: dict[_Key, float] = {}
        self.did: dict[_Key, int] = {}
        """How often it got what it asked for."""

    def passes(self, now_s: float) -> None:
        """Count the time up to now, in which nothing changed."""
        passed_s, self.at_s = now_s - self.at_s, now_s
        puts = sum(count for (_, takes), count in self.open.items() if not takes)
        if not self.open or len(self.held) > puts:
            return
        self.idle_s += passed_s
        for key in self.open:
            self.waited_s[key] = self.waited_s.get(key, 0.0) + passed_s

    def begins(self) -> None:
        """A window begins."""
        self.idle_s, self.waited_s, self.did = 0.0, {}, {}


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

    def asks(self, queue: str, consumer: str, event: QueueEvent, now_s: float) -> None:
        """A worker asks for an item, or for room; or it is done with items."""
        rank = self._ranks.get(consumer)
        if rank is None:
            return
        rank.passes(now_s)
        if isinstance(event, (Took, Put)):
            key = (queue, isinstance(event, Took))
            rank.open[key] = rank.open.get(key, 0) + 1
        elif isinstance(event, (Done, Keep, GiveBack)):
            rank.held.difference_update((queue, number) for number in event.numbers)
        elif isinstance(event, Restore):
            rank.held = {each for each in rank.held if each[0] != queue}

    def answered(
        self, queue: str, consumer: str, event: Took | Put, now_s: float, *, got: bool, numbers: Iterable[int] = ()
    ) -> None:
        """It has an answer. `got`: and what it asked for; `numbers`: of items that it was given."""
        rank, key = self._ranks.get(consumer), (queue, isinstance(event, Took))
        if rank is None:
            return
        rank.passes(now_s)
        if rank.open.get(key):
            rank.open[key] -= 1
            if not rank.open[key]:
                del rank.open[key]
        rank.held.update((queue, number) for number in numbers)
        if got:
            rank.did[key] = rank.did.get(key, 0) + 1
            rank.has_put = rank.has_put or isinstance(event, Put)

    def window(self, waiting: Mapping[str, int], now_s: float, *, is_starved: bool) -> Measured:
        """Return what happened since this was asked for last. `waiting`: items in each queue now."""
        since_s, self._since_s = self._since_s, now_s
        length_s = now_s - since_s if since_s is not None else 0.0
        ranks: dict[str, list[_Rank]] = {}
        for consumer, rank in self._ranks.items():
            rank.passes(now_s)
            ranks.setdefault(consumer.rpartition(":")[0], []).append(rank)
        members = {name: _member(found, since_s, length_s) for name, found in ranks.items()}
        for rank in self._ranks.values():
            rank.begins()
        return Measured(members=members, waiting=dict(waiting), length_s=length_s, is_starved=is_starved)


def _member(ranks: list[_Rank], since_s: float | None, length_s: float) -> MemberDemand:
    shares: dict[_Key, float] = {}
    did: dict[_Key, int] = {}
    for rank in ranks:
        for key, waited_s in rank.waited_s.items():
            shares[key] = shares.get(key, 0.0) + _share(waited_s, length_s) / len(ranks)
        for key, count in rank.did.items():
            did[key] = did.get(key, 0) + count
    return MemberDemand(
        idle=sum(_share(rank.idle_s, length_s) for rank in ranks) / len(ranks),
        waits={queue: share for (queue, takes), share in shares.items() if takes},
        blocked={queue: share for (queue, takes), share in shares.items() if not takes},
        took={queue: count for (queue, takes), count in did.items() if takes},
        put={queue: count for (queue, takes), count in did.items() if not takes},
        has_put=any(rank.has_put for rank in ranks),
        is_whole=since_s is not None and all(rank.came_s <= since_s for rank in ranks),
    )


def _share(waited_s: float, length_s: float) -> float:
    return min(waited_s / length_s, 1.0) if length_s else 0.0
