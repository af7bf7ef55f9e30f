"""What a fleet's own past says a figure should be. Pure.

Thresholds by hand fit one machine; a fleet's median fits that fleet. Mycroft found that alarms at 80 % of the usual bandwidth
are false ones and waits for half; between nodes at rest, which is what is measured here, 70 % is far outside of what varies,
provided that the series itself does not vary more: then its own spread decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from robust_run.health.checks.busy import is_disturbed
from robust_run.health.checks.types import CheckName, Line, Name, Result

#: What is compared, by check: rates, higher is better.
JUDGED: Mapping[CheckName, tuple[str, ...]] = {
    "compute": ("flop_per_s", "memory_bytes_per_s"),
    "memory": ("bytes_per_s",),
    "disk": ("write_bytes_per_s", "read_bytes_per_s"),
    "exchange": ("bus_bytes_per_s",),
    "neighbours": ("bus_bytes_per_s",),
    "allreduce": ("bus_bytes_per_s",),
}
#: Values of a series that are kept, series and outputs that are kept.
MOST_VALUES, MOST_SERIES = 200, 2000
#: Different outputs of one kind that are kept.
MOST_OUTPUTS = 4
#: Fewer values say nothing yet.
LEAST_VALUES = 5
#: From median absolute deviations to standard deviations of a normal distribution.
MAD_TO_SIGMA = 1.4826


Kept = TypeVar("Kept")


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What a deterministic check gives on one kind of device."""

    digest: Name
    nodes: Annotated[tuple[Name, ...], Meta(max_length=MOST_VALUES)]
    """Nodes that gave it."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What this fleet measured before."""

    schema: int = 1
    series: Annotated[
        dict[Line, Annotated[tuple[float, ...], Meta(max_length=MOST_VALUES)]], Meta(max_length=MOST_SERIES)
    ] = {}
    """Newest last, by `key`."""
    outputs: Annotated[
        dict[Line, Annotated[tuple[Output, ...], Meta(max_length=MOST_OUTPUTS)]], Meta(max_length=MOST_SERIES)
    ] = {}
    """By check and kind: a bad node may have been the first."""


class SlownessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """From when on something is too slow."""

    share_of_history: float = 0.7
    """Of the median of the fleet's past."""
    sigmas: float = 4.0
    """And this far below it, in standard deviations of the series."""
    share_of_peers: float = 0.5
    """Of the median of the others in the same run."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What is usual, and what is too little."""

    usual: float
    least: float
    values: int


def key(result: Result, figure: str) -> str:
    """Return the name of the series that a figure belongs to."""
    return f"{result.check} {figure} {result.kind}"[:500]


def expectation(values: tuple[float, ...], limits: SlownessLimits) -> Expectation | None:
    """Return what a series lets expect, None if it is too short."""
    if len(values) < LEAST_VALUES:
        return None
    usual = median(values)
    sigma = MAD_TO_SIGMA * median(abs(value - usual) for value in values)
    return Expectation(
        usual=usual, least=min(usual * limits.share_of_history, usual - limits.sigmas * sigma), values=len(values)
    )


def learn(history: History, results: Iterable[Result], passed: Iterable[str]) -> History:
    """Return the history with what nodes measured that passed.

    Injected faults and suspects teach nothing, nor does the speed of what was disturbed.
    """
    fine = set(passed)
    series = dict(history.series)
    outputs = dict(history.outputs)
    for result in results:
        if result.outcome != "done" or result.injected or result.wrong or not set(_nodes(result)) <= fine:
            continue
        for figure in JUDGED.get(result.check, ()):
            value = result.figures.get(figure, 0.0)
            if value > 0 and not is_disturbed(result, figure):
                name = key(result, figure)
                series[name] = (*series.pop(name, ()), value)[-MOST_VALUES:]
        if len(result.digests) == 1:
            _note_output(outputs, result)
    return History(series=_newest(series), outputs=_newest(outputs))


def output_name(result: Result) -> str:
    """Return under which name the output of a deterministic check is kept."""
    return f"{result.check} {result.kind}"[:500]


def expected_output(outputs: tuple[Output, ...]) -> Output | None:
    """Return the output that more nodes gave than gave all others together; None if there is none."""
    best = max(outputs, key=lambda each: len(each.nodes), default=None)
    if best is None or 2 * len(best.nodes) <= sum(len(each.nodes) for each in outputs):
        return None
    return best


def _note_output(outputs: dict[str, tuple[Output, ...]], result: Result) -> None:
    """Note that a node gave an output; what it gave before does not count any more."""
    name, digest = output_name(result), next(iter(result.digests))
    by_digest = {each.digest: [node for node in each.nodes if node != result.node] for each in outputs.pop(name, ())}
    by_digest.setdefault(digest, []).append(result.node)
    kept = sorted(by_digest.items(), key=lambda item: -len(item[1]))[:MOST_OUTPUTS]
    outputs[name] = tuple(Output(digest=each, nodes=tuple(nodes[-MOST_VALUES:])) for each, nodes in kept if nodes)


def _newest(table: dict[str, Kept]) -> dict[str, Kept]:
    return dict(list(table.items())[-MOST_SERIES:])


def _nodes(result: Result) -> tuple[str, ...]:
    return result.group or (result.node,)
