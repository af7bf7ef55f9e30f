"""Which units a node fetches ahead, in which order, and from whom. Pure.

Nodes that share fetch each stripe of units once from the store: each its own stripes first, then those of the next node and so
on, from that node. So each unit leaves the store once, however many nodes there are, and no node is asked by all at once.
What a node does not give, the next one fetches for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

#: Neighbouring units of about so many bytes belong to one node: one request of the store is not cut up more than it has to be.
STRIPE_BYTES = 32 << 20


class Share(msgspec.Struct, frozen=True):
    """This node among those that share."""

    own: int = 0
    nodes: int = 1


class FetchPlan(msgspec.Struct, frozen=True):
    """What is fetched: the order, and what there is no room for."""

    order: tuple[int, ...]
    """Numbers of units."""
    left_out: tuple[int, ...]
    planned_bytes: int


def stripes(sizes: Sequence[int]) -> list[int]:
    """Return the stripe of each unit."""
    found, stripe, filled = [], 0, 0
    for size in sizes:
        if filled and filled + size > STRIPE_BYTES:
            stripe, filled = stripe + 1, 0
        found.append(stripe)
        filled += size
    return found


def owner(stripe: int, nodes: int, failed: Collection[int] = ()) -> int:
    """Return which node fetches a stripe from the store: the next one where one has failed, the same for all who know that.

    -1: all of them have failed.
    """
    return next((node for away in range(nodes) if (node := (stripe + away) % nodes) not in failed), -1)


def plan(sizes: Sequence[int], share: Share, room_bytes: int | None) -> FetchPlan:
    """Return what to fetch, and in which order. `room_bytes`: so much memory may be taken; None: no limit is known."""
    by_distance: list[list[int]] = [[] for _ in range(share.nodes)]
    for number, stripe in enumerate(stripes(sizes)):
        by_distance[(owner(stripe, share.nodes) - share.own) % share.nodes].append(number)
    ordered = [number for group in by_distance for number in group]
    planned, taken = len(ordered), 0
    for at, number in enumerate(ordered):
        if room_bytes is not None and taken + sizes[number] > room_bytes:
            planned = at
            break
        taken += sizes[number]
    return FetchPlan(tuple(ordered[:planned]), tuple(ordered[planned:]), taken)


class Pace:
    """How soon the next bytes may be asked for, so that on average no more than a rate come. Told the time."""

    def __init__(self, rate_bytes_s: float | None) -> None:
        self.rate_bytes_s = rate_bytes_s
        self._free_at_s = 0.0

    def wait_s(self, size_bytes: int, now_s: float) -> float:
        """Return how long to wait before so much is asked for, and count it."""
        if not self.rate_bytes_s:
            return 0.0
        begin_s = max(self._free_at_s, now_s)
        self._free_at_s = begin_s + size_bytes / self.rate_bytes_s
        return begin_s - now_s


def is_short(rooms: Iterable[tuple[int, int]], margin_share: float, least_bytes: int) -> bool:
    """Whether so little memory is left that what was fetched is given back. `rooms`: free and all bytes, of the node and of each
    cgroup with a limit.
    """
    return any(free_bytes < max(least_bytes, int(all_bytes * margin_share)) for free_bytes, all_bytes in rooms)
