"""One round: which ranks stand out among those that do the same work. Pure.

A rank is suspect that is slow (`SLOW_RATIO`, `SLOW_EXCESS`) in enough steps (`SLOW_SHARE`), clearly more often than its peers
are (`SPREADS`), and whose excess the steps would be shorter without (`LEAST_COST`). Medians are lower medians, so that exactly
half of the ranks may be slow, as when one of two nodes is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from robust_run.tracer.pace.stages import stages
from robust_run.tracer.pace.types import (
    LARGEST_STRIDE,
    LEAST_COST,
    MOST_STEPS,
    SLOW_EXCESS,
    SLOW_RATIO,
    SLOW_SHARE,
    SPREADS,
    STEPS_NEEDED,
    RankPace,
    RoundResult,
    SlowRank,
    TimedPace,
)
from robust_run.tracer.types import Group

LEAST_DEVIATION = 0.01
"""Of shares: below, two ranks are the same."""

_Pace = RankPace | TimedPace


class _Stage(msgspec.Struct, frozen=True):
    """The steps that all ranks of a stage have made: rows by rank, columns by step. All rows are of the same clocks."""

    paces: tuple[_Pace, ...]
    last: int
    stride: int
    """One in so many steps is known."""
    own: tuple[tuple[float, ...], ...]
    whole: tuple[tuple[float, ...], ...]
    usual: tuple[float, ...]
    """Lower median of own times at each step."""
    slow: tuple[tuple[bool, ...], ...]


class _Found(msgspec.Struct, frozen=True):
    """Who stands out in a stage, and what they cost."""

    suspects: tuple[SlowRank, ...] = ()
    lost_ms: float = 0.0
    reason: str = ""


def judge_round(
    paces: Sequence[RankPace],
    groups: Sequence[Group],
    p2p_pairs: Collection[tuple[int, int]],
    *,
    began_s: float,
    ended_s: float,
    attempt: int = 0,
    since_step: int = 0,
    timed: Sequence[TimedPace] = (),
) -> RoundResult:
    """Return who is suspect in the steps after `since_step`.

    `paces`: one for each rank, in any order; damaged ones are left out. `timed`: what GPUs say of their steps. It is what counts
    in a stage all of whose ranks have it, and is not looked at where one has not: the two do not compare, since on GPUs a host's
    own time holds the waits that a GPU's is without. The result has `steps == 0` when there are no `STEPS_NEEDED` steps that all
    ranks of a stage have made: wait for more.
    """
    known = {pace.rank: pace for pace in paces if _is_sound(pace)}
    on_gpus = {pace.rank: pace for pace in timed if _is_sound(pace)}
    chosen = (_of_one_clock(ranks, known, on_gpus) for ranks in stages(known, groups, p2p_pairs))
    judged = [stage for paces in chosen if (stage := _lined_up(paces, since_step))]
    if not judged:
        return RoundResult(
            attempt=attempt,
            began_s=began_s,
            ended_s=ended_s,
            reason=f"fewer than {STEPS_NEEDED} new steps that ranks with the same work have made",
        )
    found = [_stand_out(stage, ended_s) for stage in judged]
    whole = [length for stage in judged for row in stage.whole for length in row]
    nodes: dict[str, int] = {}
    for pace in (pace for stage in judged for pace in stage.paces):
        nodes[pace.node] = nodes.get(pace.node, 0) + 1
    return RoundResult(
        attempt=attempt,
        began_s=began_s,
        ended_s=ended_s,
        through_step=max(stage.last for stage in judged),
        steps=min(len(stage.usual) for stage in judged),
        suspects=tuple(sorted((s for one in found for s in one.suspects), key=lambda s: s.rank)),
        shares=tuple(
            (pace.rank, sum(row) / len(row))
            for stage in judged
            for pace, row in zip(stage.paces, stage.slow, strict=True)
        ),
        node_ranks=tuple(sorted(nodes.items())),
        step_ms=sum(whole) / len(whole),
        lost_ms=max(one.lost_ms for one in found),
        timed=all(isinstance(pace, TimedPace) for stage in judged for pace in stage.paces),
        reason=next((one.reason for one in found if one.reason), ""),
    )


def _is_sound(pace: _Pace) -> bool:
    """Whether the numbers can be trusted to be numbers: they come from another process."""
    length, stride = len(pace.own_ms), _stride(pace)
    return (
        pace.rank >= 0
        and 0 < stride <= LARGEST_STRIDE
        and stride & (stride - 1) == 0
        and pace.first_step % stride == 0
        and 0 < length == len(pace.step_ms) <= MOST_STEPS
        and all(math.isfinite(number) and number >= 0.0 for row in (pace.own_ms, pace.step_ms) for number in row)
    )


def _stride(pace: _Pace) -> int:
    return pace.stride if isinstance(pace, TimedPace) else 1


def _of_one_clock(
    ranks: Sequence[int], known: Mapping[int, RankPace], timed: Mapping[int, TimedPace]
) -> Sequence[_Pace]:
    """Return the paces of a stage: those of its GPUs if all of its ranks have one, else those of the hosts."""
    return [timed[rank] for rank in ranks] if all(rank in timed for rank in ranks) else [known[rank] for rank in ranks]


def _lined_up(paces: Sequence[_Pace], since_step: int) -> _Stage | None:
    """Return the steps that all of these ranks have made after `since_step`; None if too few steps or one rank alone."""
    stride = max(_stride(pace) for pace in paces)
    first = max(since_step + 1, *(pace.first_step for pace in paces))
    last = min(pace.first_step + (len(pace.own_ms) - 1) * _stride(pace) for pace in paces)
    steps = range(-(-first // stride) * stride, last + 1, stride)
    if len(paces) < 2 or len(steps) < STEPS_NEEDED:
        return None
    places = [[(step - pace.first_step) // _stride(pace) for step in steps] for pace in paces]
    own = tuple(tuple(pace.own_ms[at] for at in row) for pace, row in zip(paces, places, strict=True))
    whole = tuple(tuple(pace.step_ms[at] for at in row) for pace, row in zip(paces, places, strict=True))
    usual = tuple(_median_low(column) for column in zip(*own, strict=True))
    slow = tuple(
        tuple(o > SLOW_RATIO * u and o - u > SLOW_EXCESS * w for o, u, w in zip(mine, usual, lengths, strict=True))
        for mine, lengths in zip(own, whole, strict=True)
    )
    return _Stage(tuple(paces), steps[-1], stride, own, whole, usual, slow)


def _stand_out(stage: _Stage, ended_s: float) -> _Found:
    """Return the ranks of a stage that are slow clearly more often than is usual there, if that costs anything."""
    count = len(stage.usual)
    shares = [sum(row) / count for row in stage.slow]
    usual = _median_low(shares)
    limit = max(SLOW_SHARE, usual + SPREADS * _deviation(shares, usual, count))
    slow = [index for index, share in enumerate(shares) if share >= limit]
    if not slow:
        often = max(shares)
        return _Found(reason="all ranks are slow at times, none stands out" if often >= SLOW_SHARE else "")
    if 2 * len(slow) > len(shares):
        return _Found(reason=f"{len(slow)} of {len(shares)} ranks with the same work are slow: too many to blame")
    lost_ms = _lost_ms(stage, set(slow))
    step_ms = sum(map(sum, stage.whole)) / (count * len(shares))
    if lost_ms < LEAST_COST * step_ms:
        return _Found(reason="the slow ranks cost hardly any time")
    peers = tuple(pace.rank for pace in stage.paces)
    return _Found(suspects=tuple(_slow_rank(stage, index, peers, usual, ended_s) for index in slow), lost_ms=lost_ms)


def _deviation(shares: Sequence[float], usual: float, count: int) -> float:
    """Return the standard deviation to expect between shares of ranks that are equal.

    The larger of what chance gives (a binomial share of `count` steps; at least one slow step is assumed) and of what is seen
    between the ranks (median absolute deviation), which is more where slow steps come in bursts.
    """
    chance = math.sqrt(max(usual, 1 / count) / count * len(shares) / (len(shares) - 1))
    seen = 1.4826 * _median_low([abs(share - usual) for share in shares])
    return max(chance, seen, LEAST_DEVIATION)


def _lost_ms(stage: _Stage, slow: set[int]) -> float:
    """Return by how much longer the mean step is than if the slow ranks were not there (all wait for the slowest)."""
    lost = 0.0
    for column in zip(*stage.own, strict=True):
        others = max(value for index, value in enumerate(column) if index not in slow)
        lost += max(0.0, max(column) - others)
    return lost / len(stage.usual)


def _slow_rank(stage: _Stage, index: int, peers: tuple[int, ...], usual: float, ended_s: float) -> SlowRank:
    """Return what is said of a rank that stands out."""
    pace, flags = stage.paces[index], stage.slow[index]
    steps = [step for step, is_slow in enumerate(flags) if is_slow]
    newer = pace.step_ms[(stage.last - pace.first_step) // _stride(pace) + 1 :]
    after_ms = sum(stage.whole[index][steps[0] :]) * stage.stride + sum(newer) * _stride(pace)
    return SlowRank(
        rank=pace.rank,
        node=pace.node,
        slow_steps=len(steps),
        steps=len(flags),
        own_ms=_median_low([stage.own[index][step] for step in steps]),
        peers_ms=_median_low([stage.usual[step] for step in steps]),
        usual_share=usual,
        peers=peers,
        since_s=ended_s - after_ms / 1e3,
    )


def _median_low(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
