"""A call that ranks wait in: what who waits for whom is made of."""

from __future__ import annotations

import msgspec

from robust_run.tracer.types import Group


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One call that ranks wait in."""

    group: Group
    op: str
    seq: int
    peer: int = -1
    """Of a point-to-point call."""
    waiters: tuple[int, ...]
    missing: tuple[int, ...]
    """Who has not come; empty if all have."""
    since_s: float
    """When the first waiter began."""
    inside: bool = False
    """Known from NCCL's traces, which number calls in their own way; rings say nothing of it."""

    @property
    def any_sender(self) -> bool:
        """One of the missing is enough."""
        return self.op == "recv_any"
