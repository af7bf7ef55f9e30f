"""Arrows of a timeline: who was waited for. From a send to its receive, from the last to join a collective to those before. Pure.

Only within a node: clocks of several are not compared. A collective has none unless all of its members are drawn.

Format: "Trace Event Format", Google: a flow begins with s and ends with f, each in a span of its own; the end binds to the span
around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from robust_run.report.timeline_events import Event
from robust_run.tracer.types import LIFECYCLE, Op

MOST_ARROWS = 20_000
"""Of the newest calls; a picture of more cannot be read."""
MOST_OF_CALL = 8
"""Of one collective: to those that waited longest."""
LEAST_WAIT_NS = 1_000_000
"""Whoever waited for less was not held up."""
SENDS, RECEIVES = frozenset({"send"}), frozenset({"recv"})


class Drawn(NamedTuple):
    """A call where it was drawn."""

    rank: int
    track: int
    begin_ns: int
    end_ns: int
    node: str


class Arrows:
    """Takes in the calls of all ranks as they are drawn, and says then which depended on which."""

    def __init__(self) -> None:
        self._collectives: dict[tuple[str, str, int, int], list[Drawn]] = {}
        self._sends: dict[tuple[str, int, int, int, int], Drawn] = {}
        self._receives: dict[tuple[str, int, int, int, int], Drawn] = {}

    def take(self, op: Op, drawn: Drawn, members: int) -> None:
        """Take in a call. `members`: how many its group has; 0: not known."""
        if op.op in SENDS and op.peer >= 0:
            self._sends[op.group, drawn.rank, op.peer, op.tag, op.seq] = drawn
        elif op.op in RECEIVES and op.peer >= 0:
            self._receives[op.group, op.peer, drawn.rank, op.tag, op.seq] = drawn
        elif op.op not in LIFECYCLE and op.op != "recv_any":
            self._collectives.setdefault((op.group, op.op, op.seq, members), []).append(drawn)

    def pairs(self) -> list[tuple[Drawn, Drawn]]:
        """Return who was waited for, and who waited; the newest, in order of time."""
        found = [
            (sent, received)
            for key, sent in self._sends.items()
            if (received := self._receives.get(key)) is not None
            and received.end_ns >= sent.begin_ns
            and received.node == sent.node
        ]
        for (*_, count), members in self._collectives.items():
            if len(members) != count or len({one.node for one in members}) > 1:
                continue
            last = max(members, key=lambda one: (one.begin_ns, one.rank))
            waited = [
                one for one in members if last.begin_ns - one.begin_ns >= LEAST_WAIT_NS and one.end_ns >= last.begin_ns
            ]
            found += [(last, one) for one in sorted(waited, key=lambda one: one.begin_ns)[:MOST_OF_CALL]]
        return sorted(found, key=lambda pair: (pair[0].begin_ns, pair[1].rank))[-MOST_ARROWS:]

    def events(self) -> Iterator[Event]:
        """Yield the arrows."""
        for number, (awaited, waiter) in enumerate(self.pairs(), start=1):
            yield _flow("s", number, awaited, awaited.begin_ns)
            yield _flow("f", number, waiter, max(waiter.begin_ns, awaited.begin_ns)) | {"bp": "e"}


def _flow(phase: str, number: int, drawn: Drawn, at_ns: int) -> Event:
    return {
        "ph": phase,
        "id": number,
        "pid": drawn.rank,
        "tid": drawn.track,
        "name": "waited for",
        "cat": "dependency",
        "ts": at_ns / 1e3,
    }
