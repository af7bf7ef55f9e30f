"""Who stays behind in a group whose other members go on: compared in rounds, over all nodes. Pure.

Where every member of a group is needed for each operation nobody can go on without the others for long. What may: the root of a
broadcast or a member of a gather, as far as buffers reach; groups that are used for sends and receives, whose counts are not
compared; a group that its members use at different times. So who lags is looked at, never acted on for that alone. A rank at
which the others wait is none: nobody goes on then, and the wait itself is seen.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.tracer.flight.types import OF_RECORDER
from robust_run.tracer.types import GroupProgress, RankClocks

#: In so many rounds in a row others went on and the rank did not.
ROUNDS = 3
#: And it is so far behind the one that is least far of those that go on.
LEAST_BEHIND = 2
#: Looks that lags ask for are at least so many rounds apart, and twice as many after each.
PAUSE_ROUNDS, LONGEST_PAUSE_ROUNDS = 6, 96

_Key = tuple[str, int, int, int, int]


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that stays behind."""

    rank: int
    group: str
    completed: int
    behind: int
    """How many operations the slowest of those that go on is further."""
    rounds: int
    peers: int
    """Members that go on."""

    @property
    def words(self) -> str:
        """What is said of it."""
        return (
            f"{OF_RECORDER}it is {self.behind} operations behind in group {self.group}: it has completed #{self.completed},"
            f" and {self.peers} of its members go on"
        )


class _Member(msgspec.Struct):
    completed: int
    at_s: float
    has_moved: bool = True
    rounds: int = 0
    """In a row in which it stood while others went on."""


class Lags:
    """The rounds of one attempt."""

    def __init__(self) -> None:
        self._members: dict[_Key, dict[int, _Member]] = {}
        self._round = 0
        self._quiet_until = 0
        self._pause = PAUSE_ROUNDS

    def take(self, clocks: Iterable[RankClocks]) -> Lag | None:
        """Take in what the ranks of all nodes said in one round; return who lags most, but not again and again."""
        self._round += 1
        groups: dict[_Key, dict[int, tuple[GroupProgress, float]]] = {}
        for said in clocks:
            for group in said.groups:
                if group.comparable and group.size > 1:
                    groups.setdefault(_key(group), {})[said.rank] = group, said.at_s
        # A group of which nobody says anything any more was destroyed.
        self._members = {key: self._members.get(key, {}) for key in groups}
        found = [lag for key, said in groups.items() for lag in self._in_group(key, said)]
        if not found or self._round < self._quiet_until:
            return None
        self._quiet_until, self._pause = self._round + self._pause, min(2 * self._pause, LONGEST_PAUSE_ROUNDS)
        return max(found, key=lambda lag: (lag.behind, -lag.rank))

    def _in_group(self, key: _Key, said: dict[int, tuple[GroupProgress, float]]) -> list[Lag]:
        before, now = self._members[key], dict[int, _Member]()
        for rank, (group, at_s) in said.items():
            known = before.get(rank)
            if known is not None and at_s <= known.at_s:
                now[rank] = _Member(known.completed, known.at_s, True, 0)  # nothing new was read: that says nothing
                continue
            has_moved = known is None or group.completed != known.completed
            now[rank] = _Member(group.completed, at_s, has_moved, known.rounds if known and not has_moved else 0)
        self._members[key] = now
        going = [
            member.completed
            for rank, member in now.items()
            if rank in before and member.has_moved and member.at_s > before[rank].at_s
        ]
        found = []
        for rank, member in now.items():
            if member.has_moved or not going:
                member.rounds = 0
                continue
            member.rounds += 1
            behind = min(going) - member.completed
            if member.rounds >= ROUNDS and behind >= LEAST_BEHIND:
                found.append(
                    Lag(
                        rank=rank,
                        group=key[0],
                        completed=member.completed,
                        behind=behind,
                        rounds=member.rounds,
                        peers=len(going),
                    )
                )
        return found


def _key(group: GroupProgress) -> _Key:
    return group.name, group.size, group.first, group.last, group.made
