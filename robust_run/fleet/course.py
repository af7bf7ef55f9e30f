"""How a fleet did over time: ETTR and incidents by day, or by week. Pure.

What an incident cost is put where it happened; what else a run lost (its start, above all) is spread over all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from robust_run.fleet.rates import DAY_S
from robust_run.fleet.results import CoursePoint
from robust_run.fleet.runs import duration_s, effective_s
from robust_run.fleet.words import Lost, RunFacts

_HOUR_S = 3600.0
#: Stretches that a course may have, the finest that gives no more than so many is taken.
STRETCHES_S = (_HOUR_S, 6 * _HOUR_S, DAY_S, 7 * DAY_S, 28 * DAY_S)
MOST_POINTS = 60


def lost_s(lost: Lost) -> float:
    """Return what an incident cost."""
    return math.fsum((lost.detect, lost.end, lost.check, lost.wait, lost.launch, lost.load, lost.redo))


def course(runs: Sequence[RunFacts]) -> tuple[CoursePoint, ...]:
    """Return the stretches from the first run's beginning to the last one's end; none where nothing lasted."""
    lived = [run for run in runs if run.until_s > run.began_s]
    if not lived:
        return ()
    first_s, last_s = min(run.began_s for run in lived), max(run.until_s for run in lived)
    long_s = next((each for each in STRETCHES_S if last_s - first_s <= MOST_POINTS * each), STRETCHES_S[-1])
    if last_s - first_s > MOST_POINTS * long_s:
        first_s = last_s - MOST_POINTS * long_s  # the newest: five years of months
    begin_s = first_s // long_s * long_s
    count = max(math.ceil((last_s - begin_s) / long_s), 1)
    cells = [_Cell() for _ in range(count)]
    for run in lived:
        _add(cells, run, begin_s, long_s)
    return tuple(cell.point(begin_s + at * long_s, begin_s + (at + 1) * long_s) for at, cell in enumerate(cells))


class _Cell:
    """What one stretch of time collects."""

    def __init__(self) -> None:
        self.all_s: list[float] = []
        self.known_s: list[float] = []
        self.lost_s: list[float] = []
        self.incidents = 0

    def point(self, begin_s: float, end_s: float) -> CoursePoint:
        known = math.fsum(self.known_s)
        ettr = min(max(1.0 - math.fsum(self.lost_s) / known, 0.0), 1.0) if known > 0 else None
        return CoursePoint(
            begin_s=begin_s, end_s=end_s, run_s=math.fsum(self.all_s), ettr=ettr, incidents=self.incidents
        )


def _add(cells: Sequence[_Cell], run: RunFacts, begin_s: float, long_s: float) -> None:
    effective = effective_s(run)
    for each in run.incidents:
        at = int((each.at_s - begin_s) // long_s)
        if 0 <= at < len(cells):
            cells[at].incidents += 1
    own = [(each.at_s, lost_s(each.lost)) for each in run.incidents]
    rest_s = 0.0
    if effective is not None:
        all_lost = duration_s(run) - effective
        named = math.fsum(each for _, each in own)
        scale = min(1.0, all_lost / named) if named > 0 else 0.0  # incidents that overlap: no second is lost twice
        own = [(at_s, each * scale) for at_s, each in own]
        rest_s = max(all_lost - named * scale, 0.0)
    for at, over_s in _parts(run.began_s, run.until_s, begin_s, long_s, len(cells)):
        cells[at].all_s.append(over_s)
        if effective is not None:
            cells[at].known_s.append(over_s)
            cells[at].lost_s.append(rest_s * over_s / duration_s(run))
    if effective is not None:
        for at_s, lasted_s in own:
            for at, over_s in _parts(at_s, at_s + lasted_s, begin_s, long_s, len(cells)):
                cells[at].lost_s.append(over_s)


def _parts(from_s: float, to_s: float, begin_s: float, long_s: float, count: int) -> list[tuple[int, float]]:
    """Return how much of a time is in which stretch."""
    first = max(int((from_s - begin_s) // long_s), 0)
    found = []
    for at in range(first, count):
        over_s = min(to_s, begin_s + (at + 1) * long_s) - max(from_s, begin_s + at * long_s)
        if over_s <= 0.0:
            break
        found.append((at, over_s))
    return found
