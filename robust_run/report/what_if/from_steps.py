"""What-if over lengths of steps alone, as every traced job has them: own time of each rank in each step. Pure.

What is known of a step is how long it was and how long each rank worked in it without waiting for peers. All ranks meet in a
step, so it is as long as its longest own time and a rest (communication, the pipeline's filling) that stays what it is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from robust_run.errors import UserError
from robust_run.report.what_if.operations import SLOWEST_PART, share
from robust_run.report.what_if.types import OneFixed, WhatIf

#: Fewer say nothing.
LEAST_STEPS = 5
#: Steps that are so many times as long as the median do something else as well (a save, an evaluation), where they are so few.
OTHER_WORK, SELDOM = 3.0, 0.1
MOST_RANKS = 64

Own = Mapping[int, Mapping[int, float]]
"""By rank, by step: milliseconds of own work."""


def what_if(own_ms: Own, step_ms: Mapping[int, float], stages: Sequence[Sequence[int]]) -> WhatIf:
    """Return what came of steps. `step_ms`: how long each was; `stages`: the ranks of each, as in `tracer.pace.stages`.

    Only steps that all ranks have on record count. Raises UserError where these are fewer than `LEAST_STEPS`.
    """
    ranks = sorted(own_ms)
    steps = sorted(set(step_ms).intersection(*(own_ms[rank] for rank in ranks))) if ranks else []
    if len(steps) < LEAST_STEPS:
        raise UserError(
            f"{len(steps)} steps are on record of all {len(ranks)} ranks: at least {LEAST_STEPS} are needed"
        )
    steps, left_out = _usual(steps, step_ms)
    stage_of = {rank: number for number, members in enumerate(stages) for rank in members}
    table = _Table(own_ms, step_ms, steps, ranks, stage_of)
    ratios = {rank: table.ratio(rank) for rank in ranks}
    slowest = sorted(ranks, key=lambda rank: (-ratios[rank], rank))
    fixed = [
        OneFixed(what=f"rank {rank}", step_s=table.with_ranks({rank}), ratio=ratios[rank])
        for rank in slowest[:MOST_RANKS]
    ]
    numbers = sorted({stage_of[rank] for rank in ranks if rank in stage_of})
    rows = [
        OneFixed(what=f"stage {number}", step_s=table.with_stage(number), ratio=table.stage_ratio(number))
        for number in (numbers if len(numbers) > 1 else ())
    ]
    step_s, ideal_s = table.as_it_is(), table.ideal()
    few = set(slowest[: max(1, int(SLOWEST_PART * len(slowest)))])
    return WhatIf(
        source="steps",
        steps=len(steps),
        left_out=left_out,
        workers=len(ranks),
        stages=max(1, len(numbers)),
        step_s=step_s,
        ideal_s=ideal_s,
        measured_s=step_s,
        ranks=tuple(sorted(fixed, key=lambda one: one.step_s)),
        stage_rows=tuple(rows),
        slowest_share=share(step_s, ideal_s, table.with_ranks(few)),
        last_stage_share=share(step_s, ideal_s, rows[-1].step_s) if rows else 0.0,
    )


def _usual(steps: list[int], step_ms: Mapping[int, float]) -> tuple[list[int], int]:
    """Return the steps that are like most, and how many are not: one save of a rank would outweigh fifty steps of all."""
    most_ms = OTHER_WORK * statistics.median(step_ms[step] for step in steps)
    usual = [step for step in steps if step_ms[step] <= most_ms]
    others = len(steps) - len(usual)
    return (usual, others) if others <= SELDOM * len(steps) else (steps, 0)


class _Table:
    """Own times, with medians over the ranks of a stage and over stages, step by step."""

    def __init__(
        self,
        own_ms: Own,
        step_ms: Mapping[int, float],
        steps: Sequence[int],
        ranks: Sequence[int],
        stage_of: Mapping[int, int],
    ) -> None:
        self._own, self._step, self._steps, self._ranks = own_ms, step_ms, steps, ranks
        self._stage_of = stage_of
        members: dict[int, list[int]] = {}
        for rank in ranks:
            members.setdefault(stage_of.get(rank, -1), []).append(rank)
        self._stage_ms = {
            stage: {step: statistics.median_low(own_ms[rank][step] for rank in mine) for step in steps}
            for stage, mine in members.items()
        }
        self._usual_ms = {step: statistics.median_low(each[step] for each in self._stage_ms.values()) for step in steps}

    def as_it_is(self) -> float:
        return sum(self._step[step] for step in self._steps) / len(self._steps) / 1e3

    def ideal(self) -> float:
        return self._mean(lambda _, step: self._usual_ms[step])

    def with_ranks(self, fixed: set[int]) -> float:
        return self._mean(lambda rank, step: self._peers(rank, step) if rank in fixed else self._own[rank][step])

    def with_stage(self, stage: int) -> float:
        def value(rank: int, step: int) -> float:
            own = self._own[rank][step]
            if self._stage_of.get(rank, -1) != stage:
                return own
            return own * self._usual_ms[step] / max(self._stage_ms[stage][step], 1e-6)

        return self._mean(value)

    def ratio(self, rank: int) -> float:
        ratios = [self._own[rank][step] / max(self._peers(rank, step), 1e-6) for step in self._steps]
        return statistics.median_low(ratios)

    def stage_ratio(self, stage: int) -> float:
        return statistics.median_low(
            self._stage_ms[stage][step] / max(self._usual_ms[step], 1e-6) for step in self._steps
        )

    def _peers(self, rank: int, step: int) -> float:
        return self._stage_ms[self._stage_of.get(rank, -1)][step]

    def _mean(self, value: Callable[[int, int], float]) -> float:
        """Return the mean length of a step whose own times are these: it is shorter by what the longest is shorter by."""
        total = 0.0
        for step in self._steps:
            before = max(self._own[rank][step] for rank in self._ranks)
            after = max(value(rank, step) for rank in self._ranks)
            total += max(after, self._step[step] - (before - after))
        return total / len(self._steps) / 1e3
