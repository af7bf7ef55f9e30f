"""How peers stand: who is left alone for a while, how long is waited for them, who got what from us. Pure: time comes in."""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

from robust_run.prefetch.peers.types import GROUP_BYTES
from robust_run.prefetch.rules.types import Priority

# --- Which nodes fetch a group of blocks from the origin. Pure, and the same on every node that knows the same members.
#
# Rendezvous hashing (Thaler and Ravishankar, 1998): each node has a score for each group, the highest are its owners. When a node
# goes, only its own groups move.


def group_of(block: int, block_bytes: int) -> int:
    """Return the group that a block belongs to."""
    return block // blocks_in_group(block_bytes)


def blocks_in_group(block_bytes: int) -> int:
    """Return how many blocks a group has."""
    return max(1, GROUP_BYTES // block_bytes)


class GroupOwners:
    """Owners of groups, for one set of members."""

    def __init__(self, identity: str, members: Sequence[str], origins: int) -> None:
        """`identity` of the image; `origins`: how many owners a group has."""
        self.members = tuple(dict.fromkeys(members))
        self._seeds = [
            hashlib.blake2b(f"{identity}\0{member}".encode(), digest_size=16).digest() for member in self.members
        ]
        self._count = max(1, min(origins, len(self.members)))
        self.owners = lru_cache(maxsize=1 << 16)(self._owners)
        """(group) → its owners, the first one first; () without members."""

    def _owners(self, group: int) -> tuple[str, ...]:
        if not self.members:
            return ()
        key = group.to_bytes(8, "little")
        scored = (
            (hashlib.blake2b(seed + key, digest_size=8).digest(), index) for index, seed in enumerate(self._seeds)
        )
        return tuple(self.members[index] for _score, index in heapq.nlargest(self._count, scored))


_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.5, 30.0
#: A group that no owner could give is fetched from the origin for so long.
_ORIGIN_FOR_S = 30.0
#: A group that is not demanded, and is promised again and again, is waited for so many times as long as without a word.
_LONGEST_WAITS = 4
_LATEST_HOLDERS = 8
_MOST_GROUPS = 1 << 16


class Peers:
    """Which members are asked."""

    def __init__(self) -> None:
        self._quiet_until_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def may_ask(self, member: str, now_s: float) -> bool:
        """Whether it has not failed just now."""
        return self._quiet_until_s.get(member, 0.0) <= now_s

    def failed(self, member: str, now_s: float) -> None:
        """It gave nothing. It is left alone, longer each time; failures of requests that were under way together count once."""
        if self.may_ask(member, now_s):
            count = self._failures.get(member, 0)
            self._failures[member] = count + 1
            self._quiet_until_s[member] = now_s + min(_LONGEST_BACK_OFF_S, _FIRST_BACK_OFF_S * 2 ** min(count, 16))

    def lied(self, member: str, now_s: float, for_s: float) -> None:
        """It sent a wrong block."""
        self._quiet_until_s[member] = max(self._quiet_until_s.get(member, 0.0), now_s + for_s)

    def worked(self, member: str) -> None:
        """It gave what it was asked for."""
        self._failures.pop(member, None)


class GroupPatience:
    """Since when groups are waited for, and which are fetched from the origin because peers did not give them."""

    def __init__(self, demand_wait_s: float, wait_s: float) -> None:
        """For how long a peer may say nothing, for a group that a read waits for and for any other."""
        longest_s = wait_s * _LONGEST_WAITS
        self._limits_s = {
            Priority.DEMAND: (demand_wait_s, max(demand_wait_s, wait_s)),
            Priority.HOT: (wait_s, longest_s),
            Priority.BACKGROUND: (wait_s, longest_s),
        }
        self._since_s: dict[tuple[int, bool], float] = {}
        self._promised_s: dict[int, float] = {}
        self._origin_until_s: dict[int, float] = {}

    def left_s(self, group: int, priority: Priority, now_s: float) -> float:
        """Return for how long peers are still waited for; 0.0: no more. The first call for a group starts its time."""
        if self._origin_until_s.get(group, 0.0) > now_s:
            return 0.0
        # A demand starts anew: it may come long after the prefetch of its group.
        since_s = self._since_s.setdefault((group, priority == Priority.DEMAND), now_s)
        silent_s, longest_s = self._limits_s[priority]
        heard_s = max(since_s, self._promised_s.get(group, since_s))
        return max(0.0, min(heard_s + silent_s, since_s + longest_s) - now_s)

    def promised(self, group: int, now_s: float) -> None:
        """Who is to give it is fetching it. Where the origin is slow for all, to ask it as well only makes it slower."""
        self._promised_s[group] = now_s

    def gave_up(self, group: int, now_s: float) -> None:
        """No owner gave it."""
        self._origin_until_s[group] = now_s + _ORIGIN_FOR_S

    def arrived(self, group: int) -> None:
        """It came: the next wait for it starts anew."""
        self._since_s.pop((group, True), None)
        self._since_s.pop((group, False), None)
        self._promised_s.pop(group, None)


class Holders:
    """Who got a group from us, the latest few."""

    def __init__(self) -> None:
        self._groups: OrderedDict[int, list[str]] = OrderedDict()
        self._turn = 0

    def gave(self, group: int, member: str) -> None:
        """A member got all that it asked for of a group."""
        held = [*(each for each in self._groups.pop(group, []) if each != member), member]
        self._groups[group] = held[-_LATEST_HOLDERS:]
        if len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)

    def somebody(self, group: int, but: str) -> str | None:
        """Return one of them, in turns; None where there is none but the one who asks."""
        held = [each for each in self._groups.get(group, ()) if each != but]
        self._turn += 1
        return held[self._turn % len(held)] if held else None
