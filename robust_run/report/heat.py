"""Own times of steps, rank by rank, and in words what they show: the numbers behind the heat-map. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from robust_run.tracer.types import RankTrace
from robust_run.tracer.words import count_words

MOST_STEPS = 256
"""Columns; older steps are left out."""
MOST_ROWS = 512
"""With more ranks, neighbouring ones share a row, which shows the slowest."""
SLOW_RATIO = 1.3
"""From here on a cell counts as slow in what the picture says."""


class Heat(msgspec.Struct, frozen=True):
    """The numbers behind the picture. Rows by rank, columns by step; None where nothing is known."""

    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each row."""
    first_step: int
    own_ms: tuple[tuple[float | None, ...], ...]
    median_ms: tuple[float | None, ...]
    """Over all ranks, at each step."""
    left_out: int = 0
    """Older steps that some rank remembers."""
    on_gpus: bool = False
    """Own times are of the GPUs' clocks."""

    def ratio(self, row: int, column: int) -> float | None:
        """Return how many times as long as the median a row worked in a step."""
        own, median = self.own_ms[row][column], self.median_ms[column]
        return None if own is None or median is None else own / max(median, 1e-3)


def heat_of(traces: Sequence[RankTrace], most_steps: int = MOST_STEPS, most_rows: int = MOST_ROWS) -> Heat:
    """Return own times of the newest steps: those of the GPUs where all ranks have them. Damaged marks leave gaps."""
    known, on_gpus = own_ms_of_all(traces)
    newest = max((max(row) for row in known.values() if row), default=0)
    oldest = min((min(row) for row in known.values() if row), default=1)
    first = max(oldest, newest - most_steps + 1)
    steps = range(first, newest + 1)
    medians = tuple(median([row[step] for row in known.values() if step in row]) for step in steps)
    together = -(-len(known) // most_rows) or 1
    ranks = list(known)
    rows = [tuple(ranks[start : start + together]) for start in range(0, len(ranks), together)]
    own = tuple(
        tuple(max((known[rank][step] for rank in row if step in known[rank]), default=None) for step in steps)
        for row in rows
    )
    return Heat(tuple(rows), first, own, medians, first - oldest, on_gpus)


def own_ms_of_all(traces: Sequence[RankTrace]) -> tuple[dict[int, dict[int, float]], bool]:
    """Return own times by rank, in order, and step; and whether they are of the GPUs' clocks, which all ranks must have."""
    on_gpus = bool(traces) and all(trace.phases for trace in traces)
    own_ms = _own_ms_on_gpu if on_gpus else _own_ms_on_host
    return {trace.rank: own_ms(trace) for trace in sorted(traces, key=lambda trace: trace.rank)}, on_gpus


def _own_ms_on_host(trace: RankTrace) -> dict[int, float]:
    """Return the own time of each step that has a mark before it, by step number."""
    return {step: max(0.0, length_ms - blocked_ms) for step, length_ms, blocked_ms in _steps_of(trace)}


def step_ms_of(trace: RankTrace) -> dict[int, float]:
    """Return the length of each of these steps."""
    return {step: length_ms for step, length_ms, _ in _steps_of(trace)}


def _steps_of(trace: RankTrace) -> Iterator[tuple[int, float, float]]:
    """Yield number, length and blocked time of steps, without those with a damaged mark."""
    for index in range(1, len(trace.marks)):
        before, after = trace.marks[index - 1], trace.marks[index]
        length_ms, blocked_ms = (after.at_s - before.at_s) * 1e3, (after.blocked_s - before.blocked_s) * 1e3
        if math.isfinite(length_ms - blocked_ms) and length_ms >= 0.0:
            yield trace.steps - (len(trace.marks) - 1 - index), length_ms, blocked_ms


def _own_ms_on_gpu(trace: RankTrace) -> dict[int, float]:
    """Return the same as its GPU has it, of the steps that were timed."""
    return {phases.step: phases.own_ms for phases in trace.phases if math.isfinite(phases.own_ms)}


def median(values: Sequence[float]) -> float | None:
    """Return the lower median; None of nothing."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def headline(heat: Heat, nodes: Mapping[int, str]) -> str:
    """Return in one line what the picture shows."""
    columns = range(len(heat.median_ms))
    slow = [sum((heat.ratio(row, column) or 0.0) > SLOW_RATIO for column in columns) for row in range(len(heat.ranks))]
    if not slow or not columns:
        return "No steps are on record"
    worst = max(range(len(slow)), key=lambda row: slow[row])
    others = sorted(slow)[(len(slow) - 1) // 2]
    if slow[worst] < 0.2 * len(columns) or slow[worst] < 2 * others:
        return f"No rank stands out: own time of {count_words(len(columns), 'step')} on {_ranks(heat)}"
    standing_out = [row for row in range(len(slow)) if 2 * slow[row] >= slow[worst]]
    if len(standing_out) > 1:
        return (
            f"{len(standing_out)} of {_rows(heat)} work longer than the others, {name(heat, worst, nodes)} most often"
        )
    typical = median([ratio for column in columns if (ratio := heat.ratio(worst, column) or 0.0) > SLOW_RATIO])
    called = name(heat, worst, nodes)
    who = f"The slowest of {called}" if len(heat.ranks[worst]) > 1 else called[0].upper() + called[1:]
    return f"{who} works {typical or 0.0:.2g} times as long as the others in {slow[worst]} of {count_words(len(columns), 'step')}"


def _ranks(heat: Heat) -> str:
    return count_words(sum(map(len, heat.ranks)), "rank")


def _rows(heat: Heat) -> str:
    return f"{len(heat.ranks)} {'rows' if any(len(row) > 1 for row in heat.ranks) else 'ranks'}"


def name(heat: Heat, row: int, nodes: Mapping[int, str]) -> str:
    """Return what a row is called: its ranks and their nodes."""
    ranks = heat.ranks[row]
    called = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
    hosts = sorted({nodes[rank] for rank in ranks if rank in nodes})
    return f"{called} ({', '.join(hosts[:2])}{', ...' if len(hosts) > 2 else ''})" if hosts else called
