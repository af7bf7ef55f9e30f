"""Degradation in words: who, what, why, what it costs and what to do; and as a verdict like that of any rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from robust_run.tracer.degradation.causes import OF_MACHINES, advice
from robust_run.tracer.degradation.types import Cost, Degradation
from robust_run.tracer.types import TraceVerdict
from robust_run.tracer.words import duration, ranks_words

#: Nodes and ranks that a sentence names.
MOST_NAMED = 4
_MOST_LINES = 20


def verdict_of(found: Degradation, *, rounds: int, round_s: float) -> TraceVerdict:
    """Return what is said of it. Only what a sensor explains, on nodes that are far from their peers, may be acted on."""
    may_act = is_sure(found)
    return TraceVerdict(
        kind="slow",
        ranks=found.ranks,
        nodes=found.nodes,
        group=found.group,
        confidence="high" if may_act else "low" if found.is_blind or found.kind == "all" else "medium",
        rule=rule_of(found),
        only_told=not may_act,
        sentence=sentence(found),
        evidence=lines_of(found, rounds=rounds, round_s=round_s),
        onset_s=found.since_s,
    )


def is_sure(found: Degradation) -> bool:
    """Whether peers and a sensor of the node agree that another machine would do better."""
    return (
        found.kind in ("rank", "node")
        and found.cause in OF_MACHINES
        and (found.far_from_peers or found.is_standing)
        and not found.is_blind
    )


def rule_of(found: Degradation) -> str:
    """Return the name of the rule that spoke."""
    if found.is_standing:
        return "held_up"
    if found.kind == "stage" and found.cause == "work":
        return "uneven_stages"
    if found.kind == "plan":
        return "slower_than_planned"
    return "slow_drift" if found.is_drift else f"slower_{found.kind}"


def sentence(found: Degradation) -> str:
    """Return the line that people read first."""
    cost = found.cost
    if found.is_standing:
        return f"{_who(found)}; no step has been made for {duration(cost.step_ms / 1e3)}{_because(found)}"
    if found.kind == "stage" and found.cause == "work":
        before_ms, now_ms = found.own_ms
        return (
            f"stage {found.stage} ({ranks_words(found.ranks)}) has {now_ms / max(before_ms, 1e-3):.2f} times the work of the "
            f"other stages ({length(now_ms)} a step against {length(before_ms)}), and all wait for it: {costs(cost)}"
        )
    if found.kind == "plan":
        return f"steps take {length(cost.step_ms)}, planned were {length(cost.usual_ms)}: {costs(cost)}"
    came = "have slowly become longer" if found.is_drift else "have become longer"
    return (
        f"steps {came}: {length(cost.step_ms)} instead of {length(cost.usual_ms)}; {_who(found)}{_because(found)}: "
        f"{costs(cost)}"
    )


def costs(cost: Cost) -> str:
    """Return what it costs, as a clause."""
    unit = "GPU-hours" if cost.on_gpus else "rank-hours"
    return f"{cost.lost:.0%} of throughput, {cost.hours_per_day:.3g} {unit} a day"


def lines_of(found: Degradation, *, rounds: int, round_s: float) -> tuple[str, ...]:
    """Return the evidence, and what to do, for who wants to check."""
    before_ms, now_ms = found.own_ms
    data_before_ms, data_ms = found.data_ms
    lines = [f"to do: {advice(found)}"]
    if not found.is_standing:
        lines.append(
            f"{1e3 / max(found.cost.step_ms, 1e-6):.3g} steps a second instead of {1e3 / max(found.cost.usual_ms, 1e-6):.3g}, "
            f"seen over {rounds} rounds of {round_s:.3g} s"
        )
    if found.kind != "stage" and now_ms > 0:
        lines.append(f"own work of who is slower: {length(now_ms)} a step instead of {length(before_ms)}")
    if data_ms > 0:
        lines.append(f"of which they wait for data: {length(data_ms)} instead of {length(data_before_ms)}")
    if found.is_blind and not found.is_standing:
        lines.append("calls return at once here, so that no rank is seen to wait: only sensors can name a node")
    lines += [f"on {one.node}: {one.words}" for one in found.seen]
    return tuple(lines[:_MOST_LINES])


def _who(found: Degradation) -> str:
    names = ", ".join(found.nodes[:MOST_NAMED]) + (" and others" if len(found.nodes) > MOST_NAMED else "")
    if found.is_standing or (found.kind == "node" and found.is_blind):
        return f"node {names} holds the others up" if found.is_standing else f"probably for node {names}"
    if found.kind == "rank":
        verb = "is" if len(found.ranks) == 1 else "are"
        return f"{ranks_words(found.ranks)} (node {names}) {verb} slower"
    if found.kind == "node":
        return f"node {names} is slower, with all of its ranks ({ranks_words(found.ranks)})"
    if found.kind == "stage":
        return f"stage {found.stage} ({ranks_words(found.ranks)}) is slower, on all of its nodes"
    if found.kind == "group":
        where = f"the communication of group {found.group}" if found.group else "communication"
        return f"no rank works longer, {where} takes longer" + (f", by {names}" if names else "")
    return "all ranks need longer"


def _because(found: Degradation) -> str:
    if found.cause == "data":
        return f", waiting for data ({length(found.data_ms[1])} a step)"
    if not found.seen:
        return ""
    first = found.seen[0]
    more = len({one.node for one in found.seen}) - 1
    where = f"on {first.node}" + (f" and {more} other node{'s' if more > 1 else ''}" if more else "")
    return f"; {where}, {first.words}"


def over(found: Degradation, step_ms: float, now_s: float) -> str:
    """Return what is said when it is over."""
    lasted_s = max(now_s - found.since_s, 0.0)
    lost = found.cost.hours_per_day / 86400.0 * lasted_s
    unit = "GPU-hours" if found.cost.on_gpus else "rank-hours"
    return f"steps take {length(step_ms)} again, after {duration(lasted_s)} ({lost:.2g} {unit} lost)"


def costs_of_group(taken_ms: Mapping[str, Sequence[float]], name: str) -> str:
    """Return how long calls of a group take against those of the others."""
    others = sorted(value for other, each in taken_ms.items() if other != name for value in each)
    mine = sorted(taken_ms[name])
    return f"{length(mine[(len(mine) - 1) // 2])} in it, {length(others[(len(others) - 1) // 2])} in the others like it"


def length(length_ms: float) -> str:
    """Return how long something takes in a step."""
    return f"{length_ms:.3g} ms" if length_ms < 1000 else f"{length_ms / 1e3:.3g} s"
