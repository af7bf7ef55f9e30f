"""The words of reading: one row, the names of its columns, and what is refused."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns say when, who and in what role. All others are metrics."""

    time: str = "time"
    machine: str = "machine"
    role: str = "role"


@dataclass(frozen=True, slots=True)
class Row:
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
