"""Groups of two nodes: a slow NIC makes both ways of its group slow, which in that group alone looks like a busy fabric. Pure.

What tells the two apart are the other groups of the same two nodes (data parallelism by rails has one for each GPU of a node):
their ways lead through other NICs and the same fabric. So a group is compared with those: slow is one both of whose ways take
longer than they did, against how the others changed. Which of the two ends it is, nothing tells. A busy fabric and larger
messages are alike in all groups; two nodes with one group have none to compare with, and nothing is told of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from robust_run.tracer.nccl.slow_signs import WIRE_FACTOR, MemberWork, Sign, Wire, steps_of, way_words


class Change(NamedTuple):
    """How the steps of a wire differ from what they were."""

    usual_s: float
    took_s: float
    steps: float
    """On each channel, an operation."""

    @property
    def times(self) -> float:
        """How many times as long they take."""
        return self.took_s / self.usual_s


class PairChanges(NamedTuple):
    """Both ways of a group of two."""

    nodes: frozenset[str]
    ways: Mapping[Wire, Change]


def changes(now: Sequence[MemberWork], past: Mapping[int, MemberWork]) -> PairChanges | None:
    """Return how both ways of a group of two nodes changed; None: it is none, or the past of one is not known."""
    nodes = frozenset(member.node for member in now)
    if len(now) != 2 or len(nodes) != 2 or any(member.rank not in past for member in now):
        return None
    taken, then = steps_of(now), steps_of([past[member.rank] for member in now])
    ways = {
        wire: Change(then[wire].step_s, step.step_s, step.steps)
        for wire, step in taken.items()
        if wire in then and then[wire].step_s > 0
    }
    return PairChanges(nodes, ways) if len(ways) == 2 else None


def slow_both_ways(pairs: Mapping[int, PairChanges]) -> dict[int, dict[Wire, Sign]]:
    """Return the groups both of whose ways are slow, with a sign for each, by the hash of the communicator."""
    found = {}
    for comm, mine in pairs.items():
        others = [
            max(way.times for way in of.ways.values())
            for other, of in pairs.items()
            if other != comm and of.nodes == mine.nodes
        ]
        if not others:
            continue
        drift = max(1.0, median(others))
        if all(way.times >= WIRE_FACTOR * drift for way in mine.ways.values()):
            found[comm] = {wire: _sign(wire, way, drift) for wire, way in mine.ways.items()}
    return found


def is_slow_among(pairs: Mapping[int, PairChanges], comm: int, wire: Wire) -> bool:
    """Tell whether one way of a group is slow against the other groups of the same nodes, too: the way back alone is little to
    compare with."""
    mine = pairs[comm]
    others = [
        way.times for other, of in pairs.items() if other != comm and of.nodes == mine.nodes for way in of.ways.values()
    ]
    return not others or mine.ways[wire].times >= WIRE_FACTOR * max(1.0, median(others))


def _sign(wire: Wire, way: Change, drift: float) -> Sign:
    usual_s = way.usual_s * drift
    return Sign((way.took_s - usual_s) * way.steps, way.took_s / usual_s, way_words(wire, way.took_s, usual_s))
