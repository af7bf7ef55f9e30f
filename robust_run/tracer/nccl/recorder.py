"""What torch's flight recorder adds to a verdict about a job on NCCL: whether the GPU has begun the operation in question. Pure.

Said only where torch times collectives (TORCH_NCCL_ENABLE_TIMING): without, it does not see them begin. An operation that is
given to NCCL and has not begun on the GPU waits behind what that GPU does before it; one that has begun waits for its peers, or
moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.tracer.types import Op, RankSight

#: Lines at the most.
LINES = 4


def lines(sights: Sequence[RankSight], accused: Sequence[int]) -> tuple[str, ...]:
    """Return what is known of the oldest operation under way on each accused rank, then on the others together."""
    under_way = {sight.rank: op for sight in sights if (op := _oldest(sight)) is not None}
    found = [_line(f"rank {rank}", under_way[rank]) for rank in accused if rank in under_way]
    if not found:
        return ()
    others = [rank for rank in under_way if rank not in set(accused)]
    begun = [rank for rank in others if under_way[rank].on_gpu]
    if begun:
        found.append(f"torch's flight recorder: {len(begun)} of {len(others)} other ranks have begun theirs on the GPU")
    return tuple(found[-LINES:])


def _oldest(sight: RankSight) -> Op | None:
    """Return the oldest operation of NCCL that is not done, where it is known whether it has begun."""
    known = [op for op in sight.recorded if op.on_gpu is not None and op.state not in ("done", "failed")]
    return min(known, key=lambda op: op.at_s, default=None)


def _line(who: str, op: Op) -> str:
    begun = "has begun" if op.on_gpu else "has not begun"
    return f"torch's flight recorder: {op.op} #{op.seq} of group {op.group} {begun} on the GPU of {who}"
