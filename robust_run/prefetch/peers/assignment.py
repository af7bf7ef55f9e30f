"""Which nodes fetch a group of blocks from the origin. Pure, and the same on every node that knows the same members.

Rendezvous hashing (Thaler and Ravishankar, 1998): each node has a score for each group, the highest are its owners. When a node
goes, only its own groups move.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from functools import lru_cache

from robust_run.prefetch.peers.types import GROUP_BYTES


def group_of(block: int, block_bytes: int) -> int:
    """Return the group that a block belongs to."""
    return block // blocks_in_group(block_bytes)


def blocks_in_group(block_bytes: int) -> int:
    """Return how many blocks a group has."""
    return max(1, GROUP_BYTES // block_bytes)


class Assignment:
    """Owners of groups, for one set of members."""

    def __init__(self, identity: str, members: Sequence[str], origins: int) -> None:
        """`identity` of the image; `origins`: how many owners a group has."""
        self.members = tuple(dict.fromkeys(members))
        self._seeds = [
            hashlib.blake2b(f"{identity}\0{member}".encode(), digest_size=16).digest() for member in self.members
        ]
        self._count = max(1, min(origins, len(self.members)))
        self.owners = lru_cache(maxsize=1 << 16)(self._owners)
        """(group) → its owners' indices in `members`, the first one first; () without members."""

    def _owners(self, group: int) -> tuple[int, ...]:
        if not self.members:
            return ()
        key = group.to_bytes(8, "little")
        scored = (
            (hashlib.blake2b(seed + key, digest_size=8).digest(), index) for index, seed in enumerate(self._seeds)
        )
        return tuple(index for _score, index in heapq.nlargest(self._count, scored))
