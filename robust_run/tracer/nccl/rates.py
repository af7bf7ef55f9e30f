"""How much NCCL moves, by communicator: what was completed between two looks at the ranks' traces. Pure.

An operation counts once it is complete on the network, with the bytes that it sent and received there. One that needs no network
(within a node, by NVLink or shared memory) is never seen to complete: it counts when it was given to NCCL, and moves no bytes.
Names are bounded everywhere: communicators come and go for months, and a store of metrics pays for every name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from robust_run.tracer.nccl.types import NAME_CHARACTERS, NAMES, CommRate, Rates

__all__ = ["NAMES", "OTHER", "UNNAMED", "CommRate", "Meter", "Move", "Moves", "Rates", "Totals", "bounded"]

OTHER = "other"
UNNAMED = "unnamed"
#: Newest operations of a rank that one look takes in; what went by before them is not counted.
NEWEST = 4096
#: Operations of a rank that may be under way; the oldest beyond are forgotten.
UNDER_WAY = 1024
#: After so long an operation that was given to NCCL and has begun nothing on the network needs no network.
SETTLED_S = 1.0
#: No single operation moves more or takes longer: the file says nonsense, and adding it up would overflow every message.
MOST_BYTES, MOST_S = 1 << 46, 1e6


class Move(NamedTuple):
    """What one operation moved so far, and whether it is complete."""

    number: int
    """Counts the operations of the process, from 0."""
    comm: int
    """`Communicator.serial`."""
    stopped_s: float | None
    """When it had been given to NCCL."""
    opened: int
    """Flows that work or worked for it."""
    closed: int
    sent_bytes: int
    received_bytes: int
    took_s: float
    """From its first to its last sign on the network."""


class Moves(NamedTuple):
    """What the newest operations of a rank moved."""

    pid: int
    begun: int
    """Operations so far."""
    names: Mapping[int, str]
    """Of communicators, by serial."""
    ops: Sequence[Move]
    """Oldest first."""


class Meter:
    """Counts what one rank completes, look after look."""

    def __init__(self) -> None:
        self._pid = 0
        self._next = 0
        """Number of the first operation that was not there at the last look."""
        self._under_way: tuple[int, ...] = ()

    def wants(self, ops: int) -> int:
        """Return how many of the newest operations the next look needs, of a rank that has begun so many."""
        return max(0, min(NEWEST, ops - min(self._under_way, default=self._next)))

    def look(self, seen: Moves, now_s: float) -> tuple[CommRate, ...]:
        """Take in a reading (`now_s`: of its clock); return what was completed since the one before."""
        if seen.pid != self._pid or seen.begun < self._next:
            self._pid, self._next, self._under_way = seen.pid, 0, ()
        oldest = max(0, seen.begun - NEWEST)
        open_ = dict.fromkeys((*self._under_way, *range(max(self._next, oldest), seen.begun)))
        done = [op for op in seen.ops if op.number in open_ and _is_done(op, now_s)]
        for op in done:
            del open_[op.number]
        self._under_way = tuple(number for number in open_ if number >= oldest)[-UNDER_WAY:]
        self._next = seen.begun
        by_comm: dict[int, list[Move]] = {}
        for op in done:
            by_comm.setdefault(op.comm, []).append(op)
        return bounded(_rate(ops, seen.names.get(comm, "")) for comm, ops in by_comm.items())


def _is_done(op: Move, now_s: float) -> bool:
    """Whether nothing of it is left to do, as far as can be seen."""
    if op.stopped_s is None:
        return False
    return op.closed >= op.opened if op.opened else now_s - op.stopped_s >= SETTLED_S


def _rate(ops: Sequence[Move], name: str) -> CommRate:
    ops = [op for op in ops if max(op.sent_bytes, op.received_bytes) <= MOST_BYTES and op.took_s <= MOST_S]
    return CommRate(
        name[:NAME_CHARACTERS] or UNNAMED,
        len(ops),
        sum(op.sent_bytes for op in ops),
        sum(op.received_bytes for op in ops),
        sum(op.took_s for op in ops),
    )


def bounded(rates: Iterable[CommRate], names: int = NAMES) -> tuple[CommRate, ...]:
    """Return rates with one row a name, the busiest `names` of them by name and the others together."""
    summed: dict[str, CommRate] = {}
    for rate in rates:
        before = summed.get(rate.name)
        summed[rate.name] = rate if before is None else _sum(rate.name, before, rate)
    other = summed.pop(OTHER, None)
    ordered = sorted(summed.values(), key=lambda one: (-one.sent_bytes, -one.operations, one.name))
    for rate in ordered[names:]:
        other = _sum(OTHER, other, rate) if other is not None else msgspec.structs.replace(rate, name=OTHER)
    return (*ordered[:names], other) if other is not None else tuple(ordered)


def _sum(name: str, one: CommRate, other: CommRate) -> CommRate:
    return CommRate(
        name,
        one.operations + other.operations,
        one.sent_bytes + other.sent_bytes,
        one.received_bytes + other.received_bytes,
        one.seconds + other.seconds,
    )


class Totals:
    """What a job's communicators did since its controller started: numbers that only grow, as counters must.

    A name that was seen stays: the first `NAMES` are told apart for good, so no counter ever goes from one row to another.
    """

    def __init__(self) -> None:
        self._rows: dict[str, CommRate] = {}

    def add(self, rates: Iterable[CommRate]) -> None:
        """Take in what one node's ranks completed."""
        for rate in rates:
            named = rate.name in self._rows or len(self._rows.keys() - {OTHER}) < NAMES
            name = rate.name if named else OTHER
            before = self._rows.get(name, CommRate(name, 0, 0, 0, 0.0))
            self._rows[name] = _sum(name, before, rate)

    def rows(self) -> tuple[CommRate, ...]:
        """Return the totals by name, `OTHER` last."""
        return tuple(sorted(self._rows.values(), key=lambda one: (one.name == OTHER, one.name)))
