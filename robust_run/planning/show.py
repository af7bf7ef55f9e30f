"""A plan's results as people read them on a terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from robust_run.planning.advice import Advice
from robust_run.planning.learning import Learned
from robust_run.planning.results import Part, Range, Summary
from robust_run.report.summary import duration

#: What is smaller than this share of the time is not shown.
LEAST_SHARE = 0.00005
MOST_ENDINGS = 8
#: Fewer say nothing of 9 in 10.
FEW_SEEDS = 10
PHASE_WORDS = {
    "detect": "until a fault is known, and what to do",
    "end": "ending attempts",
    "check": "checking nodes",
    "wait": "waiting for nodes",
    "queue": "the job had ended: people, and the queue",
    "launch": "starting workers",
    "load": "process groups, loading",
    "redo": "training again what was not saved",
    "save": "standing still to save",
    "slow": "slow nodes",
}
MECHANISM_WORDS = {
    "sensors": "sensors",
    "hang_analysis": "evidence of hangs",
    "checks": "checks and the ladder",
    "memory": "checkpoints in memory",
    "warm": "warm starts",
    "hot_update": "updates in place",
    "rollback": "rollback of code",
    "restarts": "restarts in the allocation",
}


def lines_of(summary: Summary) -> Iterator[str]:
    """Yield what `robust plan` prints first."""
    yield (
        f"{summary.nodes:,} nodes, {summary.gpus:,} GPUs, {summary.days:g} days, {summary.standby} standbys; "
        f"{summary.seeds} seeds"
    )
    yield ""
    yield f"ETTR      {_range(summary.ettr, summary.seeds)}   worst hour {_percent(summary.worst_hour)}"
    yield f"goodput   {_range(summary.goodput, summary.seeds)}   without what saving and slow nodes take"
    yield f"lost      {_part(summary.lost)}"
    yield (
        f"          {summary.attempts:.0f} attempts, {how_often(summary, duration)}; longest stop "
        f"{duration(summary.longest_stop_s)}; the job ended and was queued again {summary.ended:.1f} times"
    )
    yield from _table("lost by phase", {PHASE_WORDS[name]: each for name, each in summary.by_phase.items()})
    yield from _table("lost by cause", summary.by_cause)
    yield from ("", "incidents by what was done")
    yield "  " + ", ".join(f"{name} {count:.1f}" for name, count in summary.rungs.items())
    if summary.ladder:
        yield "  of the ladder: " + ", ".join(f"{name} {count:.1f}" for name, count in summary.ladder.items())
    if summary.ended_for:
        yield from ("", "why the job ended, and people and the queue were waited for")
        yield from (f"  {count:5.1f}  {why}" for why, count in [*summary.ended_for.items()][:MOST_ENDINGS])
    yield from _improvement_lines(summary)


def _improvement_lines(summary: Summary) -> Iterator[str]:
    if not summary.improvements:
        return
    yield from ("", "what to improve: what each would bring if halved, by itself")
    for each in summary.improvements:
        money = f"  {each.money:>14,.0f}" if each.money is not None else ""
        yield f"  {100 * each.share:+6.2f} %  {each.gpu_hours:>12,.0f} GPU-hours{money}  {each.what}"
        yield f"{'':12}{each.how}" + (f"; rests on {each.rests_on}" if each.rests_on else "")


def advice_lines(advice: Advice) -> Iterator[str]:
    """Yield what it prints when other settings were tried."""
    yield from ("", f"standbys ({advice.seeds} seeds)")
    for each in advice.standbys:
        mark = "  <- costs least" if each.standby == advice.standby_cheapest else ""
        hours = f"{each.lost_gpu_hours:>12,.0f} GPU-hours lost or waiting"
        yield f"  {each.standby:>4}  ETTR {_percent(each.ettr)}  {hours}{mark}"
    yield (
        f"  {advice.standby_p99} cover the nodes that are out in 99 % of the time, {advice.standby_binomial} those that fail "
        "on 99 % of the days"
    )
    yield from ("", "checkpoints to storage")
    for interval in advice.intervals:
        marks = [
            f"best {what}"
            for what, best in (
                ("as it is", advice.best_every_s),
                ("without copies in memory", advice.best_without_memory_s),
            )
            if interval.every_s == best
        ]
        is_last = interval is advice.intervals[-1]
        note = f"  <- {', '.join(marks)}{'; none longer was tried' if is_last else ''}" if marks else ""
        yield (
            f"  every {duration(interval.every_s):>12}  goodput {_percent(interval.goodput)}, "
            f"{_percent(interval.without_memory)} without copies in memory{note}"
        )
    yield f"  by theory, without copies in memory: Young {duration(advice.young_s)}, Daly {duration(advice.daly_s)}"
    yield from ("", "what would be lost without")
    for worth in advice.mechanisms:
        money = f"  {worth.money:>14,.0f}" if worth.money is not None else ""
        hours = f"{worth.gpu_hours:>+12,.0f} ± {worth.chance:,.0f} GPU-hours"
        yield f"  {MECHANISM_WORDS[worth.mechanism]:<28} ETTR {_percent(worth.ettr)}  {hours}{money}"


def learned_lines(learned: Learned) -> Iterator[str]:
    """Yield what was learned of runs: each number that was seen, and in one line those that were not."""
    left_out = f"; left out: {learned.left_out}" if learned.left_out else ""
    yield (
        f"learned of {learned.runs:,} runs, {learned.node_days:,.0f} node-days, the largest with {learned.largest:,} nodes"
        f"{left_out}"
    )
    if learned.again or learned.own:
        yield (
            f"  not counted: {learned.again} incidents of faults that were seen before, {learned.own} of the program's own, of "
            "people's, or only reported"
        )
    shown = [each for each in learned.figures if each.count]
    width = max((len(each.name) for each in shown), default=0)
    for each in shown:
        interval = f" ({each.low:.3g} to {each.high:.3g})" if each.low is not None and each.high is not None else ""
        used = (
            f"stays {each.default:.3g}: {each.why}" if each.why else f"used {each.used:.3g}, default {each.default:.3g}"
        )
        yield f"  {each.name:<{width}}  {used}; seen {each.count:,}: {each.seen:.3g}{interval}"
    unseen = [each.name.split(".")[1] for each in learned.figures if not each.count]
    if unseen:
        yield f"  never seen, and so less frequent than by default: {', '.join(unseen)}"
    if learned.is_small:
        yield "  these jobs had less than a quarter of the plan's nodes: no time was made shorter"
    yield ""


def _table(title: str, parts: Mapping[str, Part]) -> Iterator[str]:
    shown = {name: each for name, each in parts.items() if each.share >= LEAST_SHARE}
    yield from ("", title)
    width = max((len(name) for name in shown), default=0)
    for name, each in sorted(shown.items(), key=lambda item: -item[1].share):
        yield f"  {name:<{width}}  {_part(each)}"


def _part(part: Part) -> str:
    money = f"  {part.money:>14,.0f}" if part.money is not None else ""
    return f"{100 * part.share:6.2f} %  {part.gpu_hours:>12,.0f} GPU-hours{money}"


def _range(of: Range, seeds: int) -> str:
    return f"{_percent(of.mean)}  ({between(of, seeds)})" if seeds > 1 else _percent(of.mean)


def how_often(summary: Summary, lasted: Callable[[float], str]) -> str:
    """Return how often a failure ended an attempt, as a clause."""
    return f"a failure every {lasted(summary.mtbf_s)}" if summary.failures else "no failure"


def between(of: Range, seeds: int) -> str:
    """Return where most seeds are; of few, where all are: a twentieth of them is none."""
    if seeds < FEW_SEEDS:
        return f"lowest {_percent(of.lowest)}, highest {_percent(of.highest)}"
    return f"{_percent(of.p5)} to {_percent(of.p95)} in 9 of 10 seeds"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
