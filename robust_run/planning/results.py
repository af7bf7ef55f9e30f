"""What all seeds of a plan say together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from robust_run.planning.course import PHASES, Course, Lost, lost
from robust_run.planning.improve import Improvement, improvements
from robust_run.planning.simulated.world import simulate
from robust_run.planning.words import Plan


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One seed, without its attempts."""

    seed: int
    lost: Lost
    attempts: int
    failures: int
    """Attempts that a fault ended."""
    faults: dict[str, int]
    actions: dict[str, int]
    ladder: dict[str, int]
    evicted: dict[str, int]
    ended: int
    ended_for: dict[str, int]
    out_hours: tuple[float, ...]
    events: int


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A share over all seeds."""

    mean: float
    p5: float
    p95: float
    lowest: float
    highest: float


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time that was lost."""

    share: float
    gpu_hours: float
    money: float | None = None
    """None: no price was given."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What `robust plan` says of a cluster, but for its advice. Counts are means over the seeds."""

    nodes: int
    gpus: int
    days: float
    standby: int
    seeds: int
    ettr: Range
    goodput: Range
    worst_hour: float
    """ETTR of the worst hour of a typical (median) seed."""
    longest_stop_s: float
    """The longest time without training of a typical (median) seed."""
    lost: Part
    by_phase: dict[str, Part]
    by_cause: dict[str, Part]
    improvements: tuple[Improvement, ...]
    """What would bring most if it took half as long, the best first."""
    faults: dict[str, float]
    rungs: dict[str, float]
    """Incidents by what was done about them."""
    ladder: dict[str, float]
    evicted: dict[str, float]
    attempts: float
    failures: float
    """Attempts that a fault ended."""
    mtbf_s: float
    """Mean time between failures that ended an attempt; the whole time, if there was none."""
    ended: float
    """How often the job ended and was queued again."""
    ended_for: dict[str, float]
    """The same by fault and reason."""
    out_p99: int
    """So many nodes, or fewer, were out of the job in 99 % of the time."""
    events: int
    """That the core was told, in all seeds."""


def result(plan: Plan, seed: int, said: Callable[[float], object] = lambda _: None) -> SeedResult:
    """Simulate one seed. `said` is called now and then with the share of it that is done."""
    return of_course(plan, simulate(plan, seed, said=said))


def of_course(plan: Plan, course: Course) -> SeedResult:
    """Return what is kept of a course."""
    saving = plan.saving
    if not plan.uses.memory:  # then it does not stand still for it either
        saving = msgspec.structs.replace(saving, memory_steps=0)
    return SeedResult(
        seed=course.seed,
        lost=lost(course, saving, plan.times),
        attempts=len(course.attempts),
        failures=sum(each.told_s is not None and not _is_update(plan, each.cause) for each in course.attempts),
        faults=course.faults,
        actions=course.actions,
        ladder=course.ladder,
        evicted=course.evicted,
        ended=course.ended,
        ended_for=course.ended_for,
        out_hours=tuple(course.out_hours),
        events=course.events,
    )


def _is_update(plan: Plan, cause: str) -> bool:
    """Whether people ended an attempt to change its code."""
    kind = plan.mix.faults.get(cause)
    return kind is not None and kind.shows == "update"


def summed_up(plan: Plan, results: Sequence[SeedResult]) -> Summary:
    """Return what the seeds of a plan say together."""
    gpus = plan.nodes * plan.gpus_per_node
    gpu_hours = gpus * plan.days * 24.0

    def part(share: float) -> Part:
        return Part(
            share=share,
            gpu_hours=share * gpu_hours,
            money=share * gpu_hours * plan.price if plan.price else None,
        )

    def parts(of: Callable[[Lost], Mapping[str, float]]) -> dict[str, Part]:
        means = _means(of(each.lost) for each in results)
        return {name: part(share) for name, share in means.items() if share > 0}

    failures = sum(each.failures for each in results) / len(results)
    goodput = _range([each.lost.goodput for each in results])
    return Summary(
        nodes=plan.nodes,
        gpus=gpus,
        days=plan.days,
        standby=plan.standby,
        seeds=len(results),
        ettr=_range([each.lost.ettr for each in results]),
        goodput=goodput,
        worst_hour=max(_quantile([each.lost.worst_hour for each in results], 0.5), 0.0),
        longest_stop_s=_quantile([each.lost.longest_s for each in results], 0.5),
        lost=part(1.0 - goodput.mean),
        by_phase=parts(lambda each: each.by_phase),
        by_cause=parts(lambda each: each.by_cause),
        improvements=improvements(
            plan, {phase: _means(each.lost.by_both.get(phase, {}) for each in results) for phase in PHASES}
        ),
        faults=_means(each.faults for each in results),
        rungs=_means(each.actions for each in results),
        ladder=_means(each.ladder for each in results),
        evicted=_means(each.evicted for each in results),
        attempts=sum(each.attempts for each in results) / len(results),
        failures=failures,
        mtbf_s=plan.days * 86400.0 / failures if failures else plan.days * 86400.0,
        ended=sum(each.ended for each in results) / len(results),
        ended_for=_means(each.ended_for for each in results),
        out_p99=out_quantile([each.out_hours for each in results], 0.99),
        events=sum(each.events for each in results),
    )


def out_quantile(hours: Sequence[Sequence[float]], share: float) -> int:
    """Return the least count that so large a share of the time had no more nodes out. `hours`: by seed, by count."""
    longest = max(map(len, hours), default=0)
    sums = [sum(each[count] for each in hours if count < len(each)) for count in range(longest)]
    wanted, so_far = share * sum(sums), 0.0
    for count, hours_out in enumerate(sums):
        so_far += hours_out
        if so_far >= wanted:
            return count
    return max(longest - 1, 0)


def _means(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each, the largest first."""
    total: dict[str, float] = {}
    number = 0
    for each in counts:
        number += 1
        for name, count in each.items():
            total[name] = total.get(name, 0.0) + count
    return {name: total[name] / number for name in sorted(total, key=lambda name: (-total[name], name))}


def _range(values: Sequence[float]) -> Range:
    return Range(
        mean=sum(values) / len(values),
        p5=_quantile(values, 0.05),
        p95=_quantile(values, 0.95),
        lowest=min(values),
        highest=max(values),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, linear between two values."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
