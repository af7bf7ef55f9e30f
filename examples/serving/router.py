"""Which expert member is sent what, and what is sent again where one is lost or late. Pure.

Each expert is held by `copies` members. A part, the rows of one ticket for one expert, goes to one of them. Where that one is
lost, the part goes to another at once, or waits until a member that holds the expert is back: as long as that takes. Where one is
late, the part goes to another as well, and the first answer counts: both would say the same. Nobody is ended for being late: a
member that stands still and one that has no CPU look the same from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Part(NamedTuple):
    """Rows of one ticket for one expert."""

    ticket: int
    expert: int


Sends = dict[int, list[Part]]
"""What is to be sent, by member."""


def holders(expert: int, members: int, copies: int) -> list[int]:
    """Return the members that hold an expert, by index."""
    return [(expert + copy) % members for copy in range(min(copies, members))]


def held(member: int, experts: int, members: int, copies: int) -> list[int]:
    """Return the experts that a member holds."""
    return [expert for expert in range(experts) if member in holders(expert, members, copies)]


class Router:
    """What is on its way from one attention member. Indices are of expert members, times of one clock."""

    def __init__(self, members: int, copies: int, patience_s: float) -> None:
        """`patience_s`: who has not answered after so long is late."""
        self._members, self._copies, self._patience_s = members, copies, patience_s
        self._up: set[int] = set()
        self._late: set[int] = set()
        """Those that are connected and owe an answer for too long: others are preferred until they give one."""
        self._open: dict[Part, dict[int, float]] = {}
        """To whom each part was sent, and when."""
        self.asked_again: dict[int, int] = {}
        """How many parts were sent more than once, by ticket that is open."""

    @property
    def on_their_way(self) -> int:
        """Parts that are not answered."""
        return len(self._open)

    def ask(self, ticket: int, experts: Iterable[int], now_s: float) -> Sends:
        """Begin: a ticket's rows for experts."""
        parts = [Part(ticket, expert) for expert in experts]
        self._open.update((part, {}) for part in parts)
        return self._choose(parts, now_s)

    def came(self, member: int, now_s: float) -> Sends:
        """A member is connected. What waited for it is sent."""
        self._up.add(member)
        return self._choose([part for part, sent in self._open.items() if not sent], now_s)

    def went(self, member: int, now_s: float) -> Sends:
        """A connection is lost. What only that member had is sent to others."""
        self._up.discard(member)
        self._late.discard(member)
        lost = [part for part, sent in self._open.items() if sent.pop(member, None) is not None and not sent]
        for part in lost:
            self._again(part)
        return self._choose(lost, now_s)

    def look(self, now_s: float) -> Sends:
        """See who is late. What they owe is sent to others as well, to each once."""
        overdue = []
        for part, sent in self._open.items():
            late = {member for member, at_s in sent.items() if now_s - at_s >= self._patience_s}
            self._late |= late
            if late and len(late) == len(sent):
                overdue.append(part)
        sends = self._choose(overdue, now_s)
        for part in (part for parts in sends.values() for part in parts):
            self._again(part)
        return sends

    def answered(self, member: int, part: Part) -> bool:
        """Take in an answer; return whether it is the first of its part."""
        self._late.discard(member)
        return self._open.pop(part, None) is not None

    def close(self, ticket: int) -> int:
        """Forget a ticket; return how often parts of it were sent again."""
        for part in [each for each in self._open if each.ticket == ticket]:
            del self._open[part]
        return self.asked_again.pop(ticket, 0)

    def _again(self, part: Part) -> None:
        self.asked_again[part.ticket] = self.asked_again.get(part.ticket, 0) + 1

    def _choose(self, parts: list[Part], now_s: float) -> Sends:
        """Choose for each part a member that is up and has not got it: one that is not late, with least to do."""
        sends: Sends = {}
        load = dict.fromkeys(self._up, 0)
        for sent in self._open.values():
            for member in sent:
                load[member] += 1
        for part in parts:
            sent = self._open[part]
            able = [each for each in holders(part.expert, self._members, self._copies) if each in self._up - set(sent)]
            if able:
                member = min(able, key=lambda each: (each in self._late, load[each]))
                load[member] += 1
                sent[member] = now_s
                sends.setdefault(member, []).append(part)
        return sends
