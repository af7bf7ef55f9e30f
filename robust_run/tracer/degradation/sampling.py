"""From what nodes say in a round to one sample of how fast the job is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.tracer.degradation.naming import Crew
from robust_run.tracer.degradation.types import BLOCK, LEAST_STEPS, Sample
from robust_run.tracer.pace.types import NodePace, RankPace, TimedPace


class Taken(msgspec.Struct, frozen=True):
    """What came of a round."""

    crew: Crew
    sample: Sample
    through: int
    """The newest step in it."""


def sample_of(nodes: Sequence[NodePace], through: int, now_s: float, *, least: int = LEAST_STEPS) -> Taken | None:
    """Return the steps after `through` that all ranks have made; None: fewer than `least` yet, or a rank is missing."""
    paces = sorted((pace for node in nodes for pace in node.ranks), key=lambda pace: pace.rank)
    if not paces or len({pace.rank for pace in paces}) != len(paces):
        return None
    last = min(pace.first_step + len(pace.step_ms) - 1 for pace in paces)
    new = [_after(pace, through, last) for pace in paces]
    if any(len(rows[0]) < least for rows in new):
        return None
    timed = {pace.rank: pace for node in nodes for pace in node.timed}
    on_gpus = _on_gpus(paces, timed, through, last)
    own = tuple(on_gpus[0]) if on_gpus else tuple(_median(rows[0]) for rows in new)
    step_ms = _median(on_gpus[1]) if on_gpus else _median([_median(rows[1]) for rows in new])
    crew = Crew(tuple(p.rank for p in paces), tuple(p.node for p in paces), bool(on_gpus))
    return Taken(crew, Sample(now_s, step_ms, own, tuple(_median(rows[2]) for rows in new)), last)


def _after(pace: RankPace, through: int, last: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return own times, lengths and waits for data of a rank's steps in between."""
    begin, end = max(through + 1 - pace.first_step, 0), last + 1 - pace.first_step
    if len(pace.own_ms) != len(pace.step_ms):
        return (), (), ()
    data = pace.data_ms if len(pace.data_ms) == len(pace.step_ms) else (0.0,) * len(pace.step_ms)
    return pace.own_ms[begin:end], pace.step_ms[begin:end], data[begin:end]


def _on_gpus(
    paces: Sequence[RankPace], timed: Mapping[int, TimedPace], through: int, last: int
) -> tuple[list[float], list[float]] | None:
    """Return own time and length of a step by rank, as the GPUs of all of them timed it; None: not all did."""
    if any(pace.rank not in timed for pace in paces):
        return None
    own, whole = [], []
    for pace in paces:
        one = timed[pace.rank]
        places = [
            at
            for at in range(min(len(one.own_ms), len(one.step_ms)))
            if through < one.first_step + at * one.stride <= last
        ]
        if not places:
            return None
        own.append(_median([one.own_ms[at] for at in places]))
        whole.append(_median([one.step_ms[at] for at in places]))
    return own, whole


def as_one(samples: Sequence[Sample]) -> Sample:
    """Return several samples as one: of each number the median."""
    if len(samples) == 1:
        return samples[0]
    return Sample(
        at_s=samples[-1].at_s,
        step_ms=_median([one.step_ms for one in samples]),
        own_ms=tuple(map(_median, zip(*(one.own_ms for one in samples), strict=True))),
        data_ms=tuple(map(_median, zip(*(one.data_ms for one in samples), strict=True))),
    )


def folded(pending: tuple[Sample, ...], new: Sample) -> tuple[tuple[Sample, ...], Sample | None]:
    """Return the samples that wait to be kept as one, and that one where there are enough."""
    whole = (*pending, new)
    return ((), as_one(whole)) if len(whole) >= BLOCK else (whole, None)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
