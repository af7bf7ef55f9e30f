"""Which units a node fetches ahead, in which order, and from whom. Pure.

Nodes that share fetch each stripe of units once from the store: each its own stripes first, then those of the next node and so
on, from that node. So each unit leaves the store once, however many nodes there are, and no node is asked by all at once.
What a node does not give, the next one fetches for all. What belongs to one node (`belonging`) is fetched by that one, and by
others when one of their readers wants it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

EVERYBODYS = -1
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
    later: tuple[int, ...] = ()
    """Those that another node reads: they come if they are wanted here, too."""
    is_first: bool = False
    """Another one follows, when it is known who shares."""


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


def homes(sizes: Sequence[int], belongs: Sequence[int] | None) -> list[int]:
    """Return for each unit the first node to fetch it, not yet modulo their number. `belongs`: to which; negative: none."""
    found = stripes(sizes)
    return [own if own >= 0 else stripe for own, stripe in zip(belongs or [-1] * len(found), found, strict=True)]


def plan(sizes: Sequence[int], share: Share, room_bytes: int | None, belongs: Sequence[int] | None = None) -> FetchPlan:
    """Return what to fetch, and in which order.

    `room_bytes`: so much memory may be taken; None: no limit is known. `belongs`: see `belonging`; None: all to everybody.
    """
    by_distance: list[list[int]] = [[] for _ in range(2 * share.nodes)]
    for number, home in enumerate(homes(sizes, belongs)):
        is_others = belongs is not None and belongs[number] not in (EVERYBODYS, share.own)
        distance = (owner(home, share.nodes) - share.own) % share.nodes
        by_distance[distance + share.nodes * is_others].append(number)
    first = [number for group in by_distance[: share.nodes] for number in group]
    ordered = first + [number for group in by_distance[share.nodes :] for number in group]
    room = len(ordered)
    taken = planned = 0
    for at, number in enumerate(ordered):
        taken += sizes[number]
        if room_bytes is not None and taken > room_bytes:
            room = at
            break
        planned = taken if at < len(first) else planned
    cut = min(room, len(first))
    return FetchPlan(tuple(ordered[:cut]), tuple(ordered[room:]), planned, tuple(ordered[cut:room]))


def early(
    sizes: Sequence[int], share: Share, room_bytes: int | None, belongs: Sequence[int] | None = None
) -> FetchPlan:
    """Return what this node fetches before nodes can ask each other: what falls to it alone among `share`. See `plan`."""
    found, planned = [], 0
    for number, home in enumerate(homes(sizes, belongs)):
        is_others = belongs is not None and belongs[number] not in (EVERYBODYS, share.own)
        if is_others or owner(home, share.nodes) != share.own:
            continue
        if room_bytes is not None and planned + sizes[number] > room_bytes:
            break
        found.append(number)
        planned += sizes[number]
    return FetchPlan(tuple(found), (), planned, is_first=True)


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
