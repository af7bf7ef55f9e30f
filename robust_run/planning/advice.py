"""What would be better, and what each mechanism is worth: the same faults again with other settings. `ask` runs them; the rest is
pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from robust_run.launcher.core.spares import standby_count
from robust_run.planning.results import SeedResult, Summary, summed_up
from robust_run.planning.words import Mechanisms, Plan

#: Parts and multiples of Young's interval that are tried. Where copies are kept in memory, the best is far above it.
TRIED = (0.25, 0.5, 1.0, 2.0, 4.0, 12.0)
#: A save is hardly worth while more often, whatever theory says.
LEAST_EVERY_S = 30.0
Ask = Callable[[Sequence[Plan]], list[list[SeedResult]]]
"""Simulates each of these plans with the seeds of the advice."""


class StandbyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """So many standbys, and what they cost and save."""

    standby: int
    ettr: float
    lost_gpu_hours: float
    """What the job loses, and the standbys that wait."""


class IntervalChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint interval of storage."""

    every_s: float
    goodput: float
    without_memory: float
    """Goodput without copies in memory."""


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a mechanism is worth: what is lost without it."""

    mechanism: str
    ettr: float
    """Without it."""
    gpu_hours: float
    """More that is lost then; less than 0: it costs more than it brings."""
    chance: float
    """Standard error of that."""
    money: float | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What `robust plan` advises."""

    seeds: int
    standbys: tuple[StandbyChoice, ...]
    standby_p99: int
    """Nodes that are out of the job, or fewer, in 99 % of the time."""
    standby_binomial: int
    """P99 of the nodes that fail on one day (`--standby auto`)."""
    standby_cheapest: int
    intervals: tuple[IntervalChoice, ...]
    young_s: float
    """sqrt(2 C M): C what a save costs, M the mean time between failures."""
    daly_s: float
    """Daly's higher order of it."""
    best_every_s: float
    best_without_memory_s: float
    mechanisms: tuple[Worth, ...]


def young_s(cost_s: float, mtbf_s: float) -> float:
    """Return Young's checkpoint interval."""
    return math.sqrt(2.0 * cost_s * mtbf_s)


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's: of higher order, also where a save costs much."""
    if cost_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = math.sqrt(cost_s / (2.0 * mtbf_s))
    return young_s(cost_s, mtbf_s) * (1.0 + ratio / 3.0 + ratio * ratio / 9.0) - cost_s


def advise(plan: Plan, base: Summary, ask: Ask) -> Advice:
    """Simulate variants of a plan, and say what is best. `base`: what the plan itself came to."""
    cost_s = max(plan.saving.blocks_s, 0.01)
    young = young_s(cost_s, base.mtbf_s)
    spare = [msgspec.structs.replace(plan, standby=count) for count in _counts(plan, base)]
    saving = [_every(plan, each) for each in sorted({max(round(young * part), LEAST_EVERY_S) for part in TRIED})]
    no_memory = [_without(each, "memory") for each in saving]
    names = [name for name in Mechanisms.__struct_fields__ if getattr(plan.uses, name)]
    groups = ([plan], spare, saving, no_memory, [_without(plan, name) for name in names])
    found = iter(ask([each for group in groups for each in group]))
    (as_it_is,), spare_found, saving_found, no_memory_found, without = (
        [next(found) for _ in group] for group in groups
    )
    standbys = tuple(map(_standby, spare, spare_found))
    intervals = tuple(map(_interval, saving, saving_found, no_memory_found))
    worths = [_worth(plan, name, as_it_is, each) for name, each in zip(names, without, strict=True)]
    daily = sum(kind.per_1000_node_days for kind in plan.mix.faults.values()) / 1000.0
    return Advice(
        seeds=len(as_it_is),
        standbys=standbys,
        standby_p99=base.out_p99,
        standby_binomial=standby_count(plan.nodes, min(daily, 1.0)),
        standby_cheapest=min(standbys, key=lambda each: each.lost_gpu_hours).standby,
        intervals=intervals,
        young_s=young,
        daly_s=daly_s(cost_s, base.mtbf_s),
        best_every_s=max(intervals, key=lambda each: each.goodput).every_s,
        best_without_memory_s=max(intervals, key=lambda each: each.without_memory).every_s,
        mechanisms=tuple(sorted(worths, key=lambda each: -each.gpu_hours)),
    )


def _counts(plan: Plan, base: Summary) -> list[int]:
    """Return counts of standbys that are worth a try."""
    near = {0, base.out_p99 // 2, base.out_p99, base.out_p99 + 2, plan.standby}
    return sorted(near)


def _without(plan: Plan, name: str) -> Plan:
    return msgspec.structs.replace(plan, uses=msgspec.structs.replace(plan.uses, **{name: False}))


def _every(plan: Plan, every_s: float) -> Plan:
    return msgspec.structs.replace(plan, saving=msgspec.structs.replace(plan.saving, every_s=every_s))


def _standby(plan: Plan, seeds: Sequence[SeedResult]) -> StandbyChoice:
    found = summed_up(plan, seeds)
    waiting = plan.standby * plan.gpus_per_node * plan.days * 24.0
    return StandbyChoice(standby=plan.standby, ettr=found.ettr.mean, lost_gpu_hours=found.lost.gpu_hours + waiting)


def _interval(plan: Plan, seeds: Sequence[SeedResult], without_memory: Sequence[SeedResult]) -> IntervalChoice:
    return IntervalChoice(every_s=plan.saving.every_s, goodput=_goodput(seeds), without_memory=_goodput(without_memory))


def _goodput(seeds: Sequence[SeedResult]) -> float:
    return statistics.fmean(each.lost.goodput for each in seeds)


def _worth(plan: Plan, name: str, with_: Sequence[SeedResult], without: Sequence[SeedResult]) -> Worth:
    """Compare seed by seed: both met the same faults."""
    gpu_hours = plan.nodes * plan.gpus_per_node * plan.days * 24.0
    lost = [(one.lost.goodput - other.lost.goodput) * gpu_hours for one, other in zip(with_, without, strict=True)]
    hours = statistics.fmean(lost)
    return Worth(
        mechanism=name,
        ettr=statistics.fmean(each.lost.ettr for each in without),
        gpu_hours=hours,
        chance=statistics.stdev(lost) / math.sqrt(len(lost)) if len(lost) > 1 else 0.0,
        money=hours * plan.price if plan.price else None,
    )
