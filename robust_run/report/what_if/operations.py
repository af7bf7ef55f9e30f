"""What-if over a trace of operations: each rank, stage and kind of work at its peers' median. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

from robust_run.report.what_if.replay import Replay
from robust_run.report.what_if.types import COMPUTE, Kind, OneFixed, TracedOp, WhatIf

#: With more ranks, only those whose own work is longest are replayed one by one; of long traces fewer, so that all replays
#: together take a minute or two (1.5 us an operation).
MOST_RANKS, FEWEST_RANKS, MOST_REPLAYED = 64, 8, 40_000_000
SLOWEST_PART = 0.03
#: What people call the kinds of work; both ends of a transfer are one.
_KINDS: dict[str, tuple[Kind, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "transfers forward": ("forward_send", "forward_recv"),
    "transfers backward": ("backward_send", "backward_recv"),
    "gathering parameters": ("params_sync",),
    "reducing gradients": ("grads_sync",),
}


def what_if(ops: Sequence[TracedOp]) -> WhatIf:
    """Return what came of a trace. Raises UserError where it is empty, or cannot be replayed."""
    replay = Replay(ops)
    typical = _Typical(replay)
    step_s = replay.mean_s()
    ideal_s = replay.mean_s(replay.changed(lambda _, op: typical.of_kind(op)))
    workers = sorted({(op.dp, op.stage) for op in replay.ops}, key=lambda worker: (-typical.ratio(*worker), worker))
    stages = sorted({op.stage for op in replay.ops})

    def without(chosen: Callable[[TracedOp], bool], value: Callable[[TracedOp], float | None]) -> float:
        return replay.mean_s(replay.changed(lambda _, op: value(op) if chosen(op) else None))

    most = max(FEWEST_RANKS, min(MOST_RANKS, MOST_REPLAYED // max(1, len(replay.ops))))
    ranks = [
        OneFixed(
            what=f"dp {dp} stage {stage}" if len(stages) > 1 else f"dp {dp}",
            step_s=without(_of_workers({(dp, stage)}), typical.of_stage),
            ratio=typical.ratio(dp, stage),
        )
        for dp, stage in workers[:most]
    ]
    rows = [
        OneFixed(
            what=f"stage {stage}",
            step_s=without(_of_stage(stage), typical.as_other_stages),
            ratio=typical.stage_ratio(stage),
        )
        for stage in (stages if len(stages) > 1 else ())
    ]
    present = {op.kind for op in replay.ops}
    kinds = [
        OneFixed(what=name, step_s=without(_of_kinds(own), typical.of_kind), ratio=1.0)
        for name, own in _KINDS.items()
        if present.intersection(own)
    ]
    slowest = set(workers[: max(1, int(SLOWEST_PART * len(workers)))])
    fixed_s = without(_of_workers(slowest), typical.of_stage)
    return WhatIf(
        source="operations",
        steps=len(replay.steps),
        workers=len(workers),
        stages=len(stages),
        step_s=step_s,
        ideal_s=ideal_s,
        measured_s=replay.measured_s(),
        ranks=tuple(sorted(ranks, key=lambda one: one.step_s)),
        stage_rows=tuple(rows),
        kinds=tuple(sorted(kinds, key=lambda one: one.step_s)),
        slowest_share=share(step_s, ideal_s, fixed_s),
        last_stage_share=share(step_s, ideal_s, rows[-1].step_s) if rows else 0.0,
    )


def _of_workers(workers: Collection[tuple[int, int]]) -> Callable[[TracedOp], bool]:
    return lambda op: (op.dp, op.stage) in workers


def _of_stage(stage: int) -> Callable[[TracedOp], bool]:
    return lambda op: op.stage == stage


def _of_kinds(kinds: Collection[Kind]) -> Callable[[TracedOp], bool]:
    return lambda op: op.kind in kinds


def share(step_s: float, ideal_s: float, fixed_s: float) -> float:
    """Return what part of the slowdown goes with what was fixed, 0 to 1."""
    lost_s = step_s - ideal_s
    return min(1.0, max(0.0, (step_s - fixed_s) / lost_s)) if lost_s > 0 else 0.0


class _Typical:
    """Medians of what work takes."""

    def __init__(self, replay: Replay) -> None:
        took = list(zip(replay.ops, replay.durations_s, strict=True))
        self._by_kind = _medians((op.kind, duration) for op, duration in took)
        self._by_stage = _medians(((op.kind, op.stage), duration) for op, duration in took)
        by_kind: dict[Hashable, list[float]] = defaultdict(list)
        for key, value in self._by_stage.items():
            by_kind[key[0]].append(value)  # type: ignore[index]
        self._over_stages = {kind: statistics.median_low(values) for kind, values in by_kind.items()}
        own: dict[tuple[int, int], list[float]] = defaultdict(list)
        for op, duration in took:
            if op.kind in COMPUTE:
                own[op.dp, op.stage].append(duration / max(self._by_stage[op.kind, op.stage], 1e-9))
        self._ratios = {worker: sum(values) / len(values) for worker, values in own.items()}

    def of_kind(self, op: TracedOp) -> float:
        """The median of all work of its kind."""
        return self._by_kind[op.kind]

    def of_stage(self, op: TracedOp) -> float:
        """The median of its kind among the ranks of its stage."""
        return self._by_stage[op.kind, op.stage]

    def as_other_stages(self, op: TracedOp) -> float | None:
        """What the stage's median would be were it that of the stages; what makes a rank slow among its peers stays."""
        return self._over_stages[op.kind] if op.kind in COMPUTE else None

    def ratio(self, dp: int, stage: int) -> float:
        """How long a rank computes, against its peers."""
        return self._ratios.get((dp, stage), 1.0)

    def stage_ratio(self, stage: int) -> float:
        """How long a stage computes, against the median of the stages."""
        mine = sum(self._by_stage.get((kind, stage), 0.0) for kind in COMPUTE)
        usual = sum(self._over_stages.get(kind, 0.0) for kind in COMPUTE)
        return mine / usual if usual > 0 else 1.0


def _medians(values: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    found: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in values:
        found[key].append(value)
    return {key: statistics.median_low(each) for key, each in found.items()}
