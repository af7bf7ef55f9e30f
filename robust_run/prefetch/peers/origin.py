"""The origin of an image that peers share: asked for what is ours, and for what peers did not give in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from robust_run.prefetch.fetching.sources import BlockSource
from robust_run.prefetch.peers.source import PeerSource
from robust_run.prefetch.rules.types import Priority
from robust_run.store.cancelling import Cancellation

_LOOK_S = 0.1


class Origin:
    """As a source of blocks, beside `PeerSource`."""

    def __init__(self, origin: BlockSource, peers: PeerSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._origin, self._peers, self._clock = origin, peers, clock

    @property
    def name(self) -> str:
        """The origin's."""
        return self._origin.name

    def offers(self, start_block: int, count: int, priority: Priority) -> float | None:
        """What is ours now, all else when peers were waited for long enough."""
        now_s = self._clock()
        if not self._peers.members:
            wait_s = self._peers.waits_for_members(now_s)
            if priority == Priority.DEMAND and wait_s and count > 1:
                return None  # each node asks for it, since none knows the others yet: not more than it needs
            return (wait_s if priority != Priority.DEMAND else 0.0) or self._origin.offers(start_block, count, priority)
        groups = {self._peers.group(block) for block in (start_block, start_block + count - 1)}
        if len(groups) > 1:
            return self._origin.offers(start_block, count, priority)
        group = groups.pop()
        if priority != Priority.DEMAND and self._peers.is_ours(group) and self._peers.is_learning(now_s):
            return _LOOK_S
        if not self._peers.is_ours(group) and self._peers.offers(start_block, count, priority) is not None:
            left_s = self._peers.patience.left_s(group, priority, now_s)
            if left_s > 0:
                return left_s
        return self._origin.offers(start_block, count, priority)

    def read_into(self, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation) -> None:
        """Fill the buffers; see the origin."""
        try:
            self._origin.read_into(offset_bytes, buffers, cancel)
        except BaseException:
            self._peers.origin_gave(well=False)
            raise
        self._peers.origin_gave(well=True)
        # A read of another block of the group, long after, has its own time.
        self._peers.patience.arrived(self._peers.group_at(offset_bytes))
