"""The words of verdicts: how long a rank may keep others waiting before it counts as stuck, and a call that ranks wait in."""

from __future__ import annotations

import msgspec

from robust_run.tracer.types import Group


class RankPatience(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one job: how long a rank may keep others waiting."""

    after_s: float = 5.0
    """T: what is needed with definite evidence, or where the culprit does nothing at all."""
    spinning_factor: float = 2.0
    """Times T where it burns CPU in one and the same function, or where all have come and nothing moves."""
    working_factor: float = 120.0
    """Times T where it works: I/O flows, functions change, or it is in a place that is known to take long. Ten minutes by
    default, as torch's own limit for NCCL: to end a job that does its work costs more than a hang that is seen late."""
    look_again_s: float = 1.0

    @property
    def spinning_s(self) -> float:
        """For one that spins."""
        return self.after_s * self.spinning_factor

    @property
    def working_s(self) -> float:
        """For one that works."""
        return self.after_s * self.working_factor


class WaitPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One call that ranks wait in: what who waits for whom is made of."""

    group: Group
    op: str
    seq: int
    peer: int = -1
    """Of a point-to-point call."""
    tag: int = 0
    waiters: tuple[int, ...]
    missing: tuple[int, ...]
    """Who has not come; empty if all have."""
    since_s: float
    """When the first waiter began."""
    until_s: float | None = None
    """Of an attempt that is over: when the last waiter's call or process had ended; None: they wait, or it is not known."""
    inside: bool = False
    """Known from NCCL's traces, which number calls in their own way; rings say nothing of it."""

    @property
    def any_sender(self) -> bool:
        """One of the missing is enough."""
        return self.op == "recv_any"
