"""The page of the soak's waits: tables of what was tried, what was done about it and what was only said. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from left_alone import Went

BEGINNING = """# Soak: waits and work

Jobs of which rank 0 waits or works while others wait for it, as healthy jobs do, beside a load of our own: so many processes that
compute all the time (0.5: one, half of the time). Several jobs run at a time. An action is anything that is done about one of
them: wanted are none. What is only said is no failure; "waited long": it was looked at. Written by `make soak`, and by
`make soak-waits`.
"""
ALL = "## Every wait at each length and load"
MIXED = "## Waits and work, mixed"
HEAD = (
    "| wait | load | tried | actions | other failures | said | waited long | left out | when, where |",
    "|---" * 9 + "|",
)
MIXED_HEAD = ("| load | waits | work | actions | other failures | said | waited long |", "|---" * 7 + "|")


@dataclass(frozen=True)
class Cell:
    """A length and a load at which all waits are tried."""

    seconds: float
    load: float

    @property
    def name(self) -> str:
        """Names it on the page."""
        return f"{self.seconds:g} s at load {self.load:g}"


@dataclass(frozen=True)
class Tried:
    """A job that waited or worked, and how it went."""

    what: str
    seconds: float
    load: float
    went: Went
    is_work: bool = False
    number: int = 0
    """Of the mixed trial it was a part of."""


def counts(tried: Sequence[Tried]) -> str:
    """Return cells of a table: actions, other failures, said, looked at."""
    went = [one.went for one in tried]
    acted, failed = sum(bool(one.acted) for one in went), sum(bool(one.failed and not one.acted) for one in went)
    return f"{acted} | {failed} | {sum(bool(one.said) for one in went)} | {sum(one.suspected for one in went)}"


def rows_of(cell: Cell, tried: Sequence[Tried], wanted: int, left_out: int, where: str) -> tuple[str, list[str]]:
    """Return a row of the table, and a line for each failure. Pure."""
    row = f"{_key(cell)} {len(tried)} of {wanted} | {counts(tried)} | {left_out} | {where} |"
    again = f"python bench/soak.py --waits {cell.seconds:g} --load {cell.load:g} --only-waits"
    return row, [
        f"- {cell.name}: {one.what} (`{again} {one.what}`): {_short(one.went.problem)}"
        for one in tried
        if one.went.problem
    ]


def _key(cell: Cell) -> str:
    return f"| {cell.seconds:g} s | {cell.load:g} |"


def _short(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:400]


def waits_part(
    old: Sequence[str], found: dict[Cell, list[Tried]], wanted: int, left_out: dict[str, str], where: str
) -> list[str]:
    """Return the lines of the page on waits: cells that were not tried now keep what stood there. Pure."""
    rows: list[str] = []
    failures: list[str] = []
    for cell, tried in found.items():
        row, failed = rows_of(cell, tried, wanted, len(left_out), where)
        rows.append(row)
        failures += failed
    keys = tuple(_key(cell) for cell in found)
    kept = [line for line in old if line.startswith("| ") and line not in HEAD and not line.startswith(keys)]
    told = [line for line in old if line.startswith("- ") and not line.startswith(tuple(f"- {c.name}:" for c in found))]
    reasons = ", ".join(f"{wait} ({reason})" for wait, reason in left_out.items())
    table = sorted([*kept, *rows], key=_order)
    return [
        ALL,
        "",
        *HEAD,
        *table,
        "",
        *([*told, *failures] or ["No failures."]),
        "",
        f"Left out: {reasons or 'none'}.",
    ]


def _order(row: str) -> tuple[float, float]:
    words = row.split("|")
    return float(words[2]), float(words[1].replace("s", ""))


def mixed_part(tried: Sequence[Tried], seed: int, together: int, took_s: float, where: str) -> list[str]:
    """Return the lines of the page on waits and work mixed. Pure."""
    rows = [
        f"| {load:g} | {sum(not one.is_work for one in at)} | {sum(one.is_work for one in at)} | {counts(at)} |"
        for load in sorted({one.load for one in tried})
        for at in [[one for one in tried if one.load == load]]
    ]
    again = f"python bench/soak.py --seed {seed} --together {together} --mixed 0 --only"
    failures = [
        f"- {one.what} for {one.seconds:g} s at load {one.load:g} (`{again} {one.number}`): {_short(one.went.problem)}"
        for one in tried
        if one.went.problem
    ]
    waits, work = (Counter(one.what for one in tried if one.is_work == is_work) for is_work in (False, True))
    lists = [", ".join(f"{what} ({count})" for what, count in sorted(each.items())) for each in (waits, work)]
    return [
        MIXED, "", f"{where}: {took_s / 3600:.1f} hours, {together} jobs at a time, seed {seed}.", "", *MIXED_HEAD, *rows, "",
        *(failures or ["No failures."]), "", f"Waits: {lists[0] or 'none'}.", "", f"Work: {lists[1] or 'none'}.",
    ]  # fmt: skip
