"""From rows to readings of the whole fleet: rows of one interval are one reading, in any order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from robust_run.errors import UserError
from robust_run.health.outliers.metrics import metric_named
from robust_run.health.outliers.rows import MOST_CELLS, MOST_MACHINES, MOST_METRICS, MachineRow, Oddities
from robust_run.health.outliers.types import Reading, WatchedFleet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FIRST_INTERVALS = 5
"""So much is collected before the fleet is taken to be complete."""
LATE_INTERVALS = 2
"""A reading waits so long for rows that come late."""
LONGEST_GAP = 600
"""Intervals without a row from any machine; after more, everything starts again."""

MOST_AHEAD = 30
"""Intervals: rows farther ahead of what a second machine says are left out. One wrong clock moves no other machine's time."""

_Collected = dict[str, dict[str, float]]
"""By machine, by metric."""


class Readings:
    """Collects rows. Keeps a few intervals of them, and the names of machines and metrics."""

    def __init__(self, interval_s: float, oddities: Oddities) -> None:
        self._interval_s = interval_s
        self._oddities = oddities
        self._roles: dict[str, str] = {}
        self._metrics: dict[str, None] = {}
        self._open: dict[int, _Collected] = {}
        self._closed: int | None = None
        self._fleet: WatchedFleet | None = None
        self._first: tuple[str, int] | None = None
        self._newest: int | None = None

    def of(self, rows: Iterable[MachineRow]) -> Iterator[tuple[WatchedFleet, Reading]]:
        """Yield each reading with the fleet it is of. A fleet that is another object than before means: start again.

        Raises UserError for more machines or metrics than are allowed.
        """
        for row in rows:
            moment = math.floor(row.at_s / self._interval_s)
            if self._closed is not None and moment <= self._closed:
                self._oddities.late += 1
                continue
            self._note(row)
            newest = self._now(row.machine, moment)
            if moment > newest + MOST_AHEAD:
                self._oddities.ahead += 1
                continue
            self._open.setdefault(moment, {}).setdefault(row.machine, {}).update(row.values)
            if self._fleet is None and newest - min(self._open) < FIRST_INTERVALS:
                continue
            yield from self._close(newest - LATE_INTERVALS)
        yield from self._close(max(self._open, default=0))

    def _now(self, machine: str, moment: int) -> int:
        """Return the newest moment that two machines have reached, or the only one."""
        if self._first is None:
            self._first = (machine, moment)
        elif machine == self._first[0]:
            self._first = (machine, max(moment, self._first[1]))
        elif moment > self._first[1]:
            self._newest, self._first = self._first[1], (machine, moment)
        else:
            self._newest = moment if self._newest is None else max(moment, self._newest)
        return self._first[1] if self._newest is None else self._newest

    def _note(self, row: MachineRow) -> None:
        known = self._roles.get(row.machine)
        if known is None or (row.role and row.role != known):
            if len(self._roles) >= MOST_MACHINES:
                raise UserError(f"more than {MOST_MACHINES} machines; is the column of machines the right one?")
            self._roles[row.machine] = row.role
            if self._fleet is not None:  # a new machine, or a new role: nothing learnt fits any more
                self._fleet = None
                self._oddities.relearnt += 1
        for name in row.values:
            if name not in self._metrics:
                if self._closed is not None:
                    self._oddities.unknown += 1
                elif len(self._metrics) >= MOST_METRICS:
                    raise UserError(f"more than {MOST_METRICS} metrics; leave out those that say nothing")
                else:
                    self._metrics[name] = None

    def _close(self, until: int) -> Iterator[tuple[WatchedFleet, Reading]]:
        if not self._metrics:  # nothing but empty cells so far
            self._open.clear()
        for moment in sorted(each for each in self._open if each <= until):
            collected = self._open.pop(moment)
            fleet = self._fleet or self._assemble()
            if self._closed is not None:
                missing = moment - self._closed - 1
                if missing > LONGEST_GAP:
                    self._oddities.skipped_s += missing * self._interval_s
                    fleet = self._assemble()
                else:  # no machine reported: time passes all the same
                    for passed in range(self._closed + 1, moment):
                        yield fleet, self._reading(fleet, passed, {})
            self._closed = moment
            yield fleet, self._reading(fleet, moment, collected)

    def _assemble(self) -> WatchedFleet:
        if len(self._roles) * len(self._metrics) > MOST_CELLS:
            raise UserError(
                f"{len(self._roles)} machines with {len(self._metrics)} metrics each are more than {MOST_CELLS} values; "
                "leave out metrics that say nothing"
            )
        machines = tuple(sorted(self._roles))
        self._fleet = WatchedFleet(
            machines=machines,
            roles=tuple(self._roles[machine] for machine in machines),
            metrics=tuple(metric_named(name) for name in self._metrics),
            interval_s=self._interval_s,
        )
        return self._fleet

    def _reading(self, fleet: WatchedFleet, moment: int, collected: _Collected) -> Reading:
        import numpy as np

        values = np.full((len(fleet.machines), len(fleet.metrics)), math.nan)
        columns = {metric.name: column for column, metric in enumerate(fleet.metrics)}
        for row, machine in enumerate(fleet.machines):
            for name, value in collected.get(machine, {}).items():
                if name in columns:
                    values[row, columns[name]] = value
        return Reading(moment * self._interval_s, values)
