"""From cells to rows: the same checks for every kind of file."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from robust_run.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


from dataclasses import dataclass, field

MOST_MACHINES = 20_000
MOST_METRICS = 200
MOST_CELLS = 400_000
"""Machines times metrics: what is remembered of each takes some 400 bytes."""
MOST_VALUE = 1e30
"""Anything beyond is taken for infinite: no counter reads it, and sums of it overflow."""
MOST_LINE_BYTES = 1 << 20
MOST_NAME = 256
"""Characters in a machine's, role's or metric's name."""
_FRACTION = re.compile(r"(?<=:\d\d)\.(\d+)")
_ZONE_WITHOUT_COLON = re.compile(r"([+-]\d\d)(\d\d)$")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns say when, who and in what role. All others are metrics."""

    time: str = "time"
    machine: str = "machine"
    role: str = "role"


@dataclass(frozen=True, slots=True)
class MachineRow:
    """What one machine read at one moment."""

    at_s: float
    machine: str
    role: str
    values: dict[str, float]
    """By metric; missing ones are left out."""


@dataclass(slots=True)
class Oddities:
    """What was passed over, counted: said once at the end instead of a thousand times."""

    infinite: int = 0
    """Values that were infinite; they count as missing."""
    late: int = 0
    """Rows of a moment that had been judged already."""
    ahead: int = 0
    """Rows of a moment far ahead of all other machines' clocks."""
    unknown: int = 0
    """Values of metrics that came up after the beginning."""
    relearnt: int = 0
    """Times a new machine made everything start again."""
    skipped_s: float = 0.0
    """Time for which nothing came from anybody."""
    said: list[str] = field(default_factory=list)


Cell = object
"""str, int, float, bool, None or a datetime: what CSV, JSON and Parquet give."""


def check_columns(names: Collection[str], columns: Columns, source: str) -> None:
    """Raise UserError if rows with these columns cannot be compared."""
    for needed in (columns.time, columns.machine):
        if needed not in names:
            shown = ", ".join(sorted(names)[:10])
            raise UserError(f"{source}: no column {needed!r}, only {shown}; say --columns time=NAME,machine=NAME")
    metrics = set(names) - {columns.time, columns.machine, columns.role}
    if not metrics:
        raise UserError(f"{source}: no metric: every other column is taken for one, and there is none")
    if len(metrics) > MOST_METRICS:
        raise UserError(f"{source}: {len(metrics)} metrics, at most {MOST_METRICS}; leave out those that say nothing")


def to_row(cells: Mapping[str, Cell], columns: Columns, where: str, oddities: Oddities) -> MachineRow:
    """Return the row. `where` names file and line in errors. Raises UserError for what is no number, time or name."""
    values: dict[str, float] = {}
    if "metric" in cells and "value" in cells:  # one value a row
        cells = {**cells, _name(cells["metric"], "metric", where): cells["value"]}
    for name, cell in cells.items():
        if name in (columns.time, columns.machine, columns.role) or (name in ("metric", "value") and "value" in cells):
            continue
        number = _number(cell, name, where)
        if abs(number) > MOST_VALUE:
            oddities.infinite += 1
        elif not math.isnan(number):
            values[name] = number
    if len(values) > MOST_METRICS:
        raise UserError(f"{where}: {len(values)} metrics, at most {MOST_METRICS}; leave out those that say nothing")
    role = cells.get(columns.role)
    return MachineRow(
        at_s=_time(cells.get(columns.time), columns.time, where),
        machine=_name(cells.get(columns.machine), columns.machine, where),
        role="" if role is None or role == "" else _name(role, columns.role, where),
        values=values,
    )


def _number(cell: Cell, name: str, where: str) -> float:
    if cell is None or cell == "":
        return math.nan
    if isinstance(cell, (int, float, str)):
        try:
            return float(cell)
        except (ValueError, OverflowError):
            pass
    raise UserError(f"{where}: {name} is {_short(cell)}, which is no number; an empty cell means that it is missing")


def _as_python_3_10_reads_it(text: str) -> str:
    """Return a time as its `fromisoformat` takes it: with microseconds, if with parts of a second, and `+01:00` for a zone."""
    text = _FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", text.replace("Z", "+00:00"))
    return _ZONE_WITHOUT_COLON.sub(r"\1:\2", text)


def _time(cell: Cell, name: str, where: str) -> float:
    from datetime import datetime, timezone

    try:
        if isinstance(cell, str) and ("T" in cell or ":" in cell):
            cell = datetime.fromisoformat(_as_python_3_10_reads_it(cell))
        if isinstance(cell, datetime):
            return (cell if cell.tzinfo else cell.replace(tzinfo=timezone.utc)).timestamp()
        at_s = float(cell) if isinstance(cell, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        at_s = math.nan
    if not abs(at_s) < 1e12:
        raise UserError(f"{where}: {name} is {_short(cell)}, which is no time; write seconds, or 2026-01-31T12:00:00")
    return at_s


def _name(cell: Cell, name: str, where: str) -> str:
    if isinstance(cell, (str, int)) and 0 < len(text := str(cell)) <= MOST_NAME:
        return text
    raise UserError(f"{where}: {name} is {_short(cell)}; it must be a name of 1 to {MOST_NAME} characters")


def _short(cell: Cell) -> str:
    text = repr(cell) if not isinstance(cell, int) or abs(cell) < 1 << 64 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
