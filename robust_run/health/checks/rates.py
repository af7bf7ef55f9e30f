"""Rates that are too low: against this fleet's past, and against the others in the same run. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from robust_run.health.checks.bits import Findings
from robust_run.health.checks.busy import disturbance, is_disturbed
from robust_run.health.checks.history import JUDGED, LEAST_VALUES, History, SlownessLimits, expectation, key
from robust_run.health.checks.plan import ALONE
from robust_run.health.checks.types import Result, SuspectNode

#: Fewer peers of one kind say nothing about each other.
LEAST_PEERS = 3

GroupKey = tuple[str, int, tuple[str, ...]]
"""Check, round, nodes."""


def judge_rates(results: Iterable[Result], history: History, limits: SlownessLimits) -> Findings:
    """Return which nodes are slow by themselves. Groups of several nodes are `slow_groups`."""
    found = Findings()
    own = _own(results)
    usual = _usual(own)
    without_history = set()
    for result, figure, value in _values(own):
        name = key(result, figure)
        past = history.series.get(name, ())
        if len(past) < LEAST_VALUES:
            without_history.add(result.check)
        said, rule = _against_history(value, past, limits), "slow_against_history"
        if not said:
            said, rule = _against_peers(value, usual[name], limits), "slow_against_peers"
        sentence = f"{result.node}{_device(result)}: {result.check}: {figure} is {said}"
        if said and is_disturbed(result, figure):
            found.unchecked.append(f"{sentence}, but {disturbance(result, figure)}")
        elif said:
            suspect = SuspectNode(
                node=result.node,
                check=result.check,
                device=result.device,
                confidence="low" if result.check == "disk" else "medium",  # who else uses a disk is not known
                rule=rule,
                sentence=sentence,
            )
            found.suspects.append(suspect)
    if without_history:
        names = ", ".join(sorted(without_history))
        found.notes.append(
            f"not enough history yet for {names} ({LEAST_VALUES} values): rates are compared in this run only"
        )
    return found


def _own(results: Iterable[Result]) -> list[Result]:
    """Return what nodes did by themselves; of an exchange only the slowest rank, for they all wait for each other."""
    alone = []
    exchanges: dict[str, Result] = {}
    for result in results:
        if result.outcome == "done" and result.check in ALONE:
            alone.append(result)
        elif result.outcome == "done" and result.check == "exchange":
            known = exchanges.get(result.node)
            exchanges[result.node] = result if known is None else min(known, result, key=_bus)
    return [*alone, *exchanges.values()]


def slow_groups(
    results: Iterable[Result], history: History, limits: SlownessLimits
) -> tuple[dict[GroupKey, str], list[str]]:
    """Return groups of nodes that are too slow together, and how slow, as a clause; and those of which it cannot be told."""
    groups: dict[GroupKey, list[Result]] = defaultdict(list)
    for result in results:
        if result.outcome == "done" and len(result.group) > 1:
            groups[(result.check, result.round, result.group)].append(result)
    slowest = {name: min(members, key=_bus) for name, members in groups.items()}
    usual = _usual(slowest.values())
    found: dict[GroupKey, str] = {}
    unchecked: list[str] = []
    for name, result in slowest.items():
        for _, figure, value in _values([result]):
            series = key(result, figure)
            said = _against_history(value, history.series.get(series, ()), limits)
            said = said or _against_peers(value, usual[series], limits)
            disturbed = [each for each in groups[name] if is_disturbed(each, figure)]
            if said and disturbed:  # they all wait for each other
                why = disturbance(disturbed[0], figure)
                unchecked.append(f"{', '.join(name[2])}: {result.check}: {figure} is {said}, but {why}")
            elif said:
                found[name] = f"{figure} is {said}"
    return found, unchecked


def _values(results: Iterable[Result]) -> list[tuple[Result, str, float]]:
    return [
        (result, figure, result.figures[figure])
        for result in results
        for figure in JUDGED.get(result.check, ())
        if figure in result.figures
    ]


def _usual(results: Iterable[Result]) -> dict[str, tuple[int, float]]:
    """Return how many values of each series there are in this run, and their median."""
    found: dict[str, list[float]] = defaultdict(list)
    for result, figure, value in _values(results):
        found[key(result, figure)].append(value)
    return {name: (len(values), median(values)) for name, values in found.items()}


def _against_history(value: float, past: tuple[float, ...], limits: SlownessLimits) -> str:
    expected = expectation(past, limits)
    if expected is None or value >= expected.least:
        return ""
    return f"{quantity(value)}, usual are {quantity(expected.usual)} ({expected.values} values)"


def _against_peers(value: float, all_values: tuple[int, float], limits: SlownessLimits) -> str:
    """Compare with the median of all in this run, this one among them."""
    count, usual = all_values
    if count < LEAST_PEERS or value >= usual * limits.share_of_peers:
        return ""
    return f"{quantity(value)}, the median of {count} in this run {quantity(usual)}"


def _bus(result: Result) -> float:
    return result.figures.get("bus_bytes_per_s", float("inf"))


def _device(result: Result) -> str:
    return f" ({result.device})" if result.device not in ("", "cpu") else ""


def quantity(value: float) -> str:
    """Return a number with a prefix a person can read: 1.23 G."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g}"
