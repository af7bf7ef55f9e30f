"""Who of a group reads what, when all of them want much the same. Pure.

The way MegaScale recovers (arXiv 2402.15627, §4.4): in a data-parallel group each byte is read from storage once and given to the
others over the network, which is faster than the storage. There one rank reads all; here the units are shared out so that all
ranks read at once, equally much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class UnitId(NamedTuple):
    """A unit of a logical file."""

    file: int
    unit: int


class UnitInterval(NamedTuple):
    """Units of a logical file in a row, from `first` up to but without `end`."""

    file: int
    first: int
    end: int


@dataclass
class ReadRound:
    """What each rank of the group reads and gives to the others, by rank; bounded, so that all of it fits into memory."""

    reads: list[list[UnitId]]


@dataclass
class Shares:
    """Who reads what."""

    rounds: list[ReadRound] = field(default_factory=list)
    alone: list[list[UnitId]] = field(default_factory=list)
    """By rank: what only this rank wants. It reads it, and gives it to no other."""
    loads_bytes: list[int] = field(default_factory=list)
    """What each rank reads in all."""


def share_out(wants: Sequence[Sequence[UnitInterval]], unit_bytes: Callable[[UnitId], int], round_bytes: int) -> Shares:
    """Return who reads which unit, given what each rank wants; the same on every rank that asks.

    A unit is read by one of those who want it: the rank that has read least so far. No rank reads more than `round_bytes` in a
    round, except a single unit that is larger.
    """
    ranks = len(wants)
    shares = Shares([], [[] for _ in range(ranks)], [0] * ranks)
    shared: list[tuple[UnitId, tuple[int, ...]]] = []
    for unit, members in _wanted(wants):
        if len(members) == 1:
            shares.alone[members[0]].append(unit)
            shares.loads_bytes[members[0]] += unit_bytes(unit)
        else:
            shared.append((unit, members))
    current, filled = ReadRound([[] for _ in range(ranks)]), [0] * ranks
    for unit, members in shared:
        owner = min(members, key=lambda rank: (shares.loads_bytes[rank], rank))
        size_bytes = unit_bytes(unit)
        if filled[owner] and filled[owner] + size_bytes > round_bytes:
            shares.rounds.append(current)
            current, filled = ReadRound([[] for _ in range(ranks)]), [0] * ranks
        current.reads[owner].append(unit)
        filled[owner] += size_bytes
        shares.loads_bytes[owner] += size_bytes
    if any(current.reads):
        shares.rounds.append(current)
    return shares


def intervals(units: set[UnitId]) -> list[UnitInterval]:
    """Return units as intervals: what travels between ranks is small however large the checkpoint is."""
    found: list[UnitInterval] = []
    for file, unit in sorted(units):
        if found and found[-1].file == file and found[-1].end == unit:
            found[-1] = UnitInterval(file, found[-1].first, unit + 1)
        else:
            found.append(UnitInterval(file, unit, unit + 1))
    return found


def _wanted(wants: Sequence[Sequence[UnitInterval]]) -> Iterator[tuple[UnitId, tuple[int, ...]]]:
    """Yield each unit that anybody wants, in order, with the ranks that want it."""
    edges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, wanted in enumerate(wants):
        for file, first, end in wanted:
            edges.setdefault((file, first), []).append((rank, 1))
            edges.setdefault((file, end), []).append((rank, -1))
    places = sorted(edges)
    depth = [0] * len(wants)
    for place, following in pairwise(places):  # nothing begins at the last one
        for rank, step in edges[place]:
            depth[rank] += step
        members = tuple(rank for rank, count in enumerate(depth) if count)
        if members:  # an interval ends in its own file, so the next edge is in it too
            for unit in range(place[1], following[1]):
                yield UnitId(place[0], unit), members
