"""`robust outliers`: which machine is the odd one, in files of metrics or a stream of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from robust_run.errors import UserError
from robust_run.json_output import document
from robust_run.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robust_run.health.outliers.rows import Columns, MachineRow, Oddities
    from robust_run.health.outliers.types import OutlierLimits, OutlierVerdict


@click.command()
@click.argument("file", default="-", metavar="[FILE]")
@click.option(
    "--format", "kind", type=click.Choice(["auto", "csv", "jsonl", "parquet"]), default="auto", show_default=True
)
@click.option(
    "--interval", "interval_s", default=1.0, show_default=True, metavar="SECONDS", help="Seconds between two readings."
)
@click.option("--columns", default="", metavar="time=NAME,...", help="Names of your columns: time, machine, role.")
@click.option(
    "--apart",
    default=4.0,
    show_default=True,
    metavar="SPREADS",
    help="Spreads from the peers that count as an outlier.",
)
@click.option(
    "--hold",
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="2: wait twice as long before a machine is reported.",
)
@click.option(
    "--settle",
    default=150.0,
    show_default=True,
    metavar="SECONDS",
    help="Nothing is reported before: what is usual is learnt.",
)
@click.option(
    "--repeat",
    default=0.0,
    metavar="SECONDS",
    help="Report again so often who is still apart, and once who no longer is; 0: each once.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, one object a line.")
def outliers(  # noqa: PLR0913, PLR0917 - one for each option
    file: str,
    kind: str,
    interval_s: float,
    columns: str,
    apart: float,
    hold: float,
    settle: float,
    repeat: float,
    as_json: bool,
) -> int:
    """Name the machines whose metrics stay apart from those of their peers; exit code 1 if there is none.

    FILE is CSV, JSON lines or Parquet, a row for each machine and moment, in order of time: columns `time`, `machine`, `role`
    (optional) and a column for each metric; or `metric` and `value`, one value a row. Without FILE, JSON lines are read from
    standard input, and machines are named as soon as they stand out. A run directory in place of FILE: who stood out in that job
    so far, which is compared while it trains.
    """
    if os.path.isdir(file):
        return _of_run(file, as_json=as_json)
    from robust_run.health.commands.outlier_files import open_rows
    from robust_run.health.outliers.rows import Oddities
    from robust_run.health.outliers.types import OutlierLimits

    bounds = (
        ("--interval", interval_s, 0.01, 3600),
        ("--apart", apart, 0.5, 1000),
        ("--hold", hold, 0.01, 100),
        ("--settle", settle, 0, 86400),
        ("--repeat", repeat, 0, 86400),
    )
    for option, number, least, most in bounds:
        if not least <= number <= most:
            raise UserError(f"{option} {number} is out of range; write {least} to {most}")
    oddities = Oddities()
    rows = open_rows(file, kind, _columns(columns), oddities, sys.stdin.buffer)
    found = 0
    limits = OutlierLimits(apart=apart, hold_factor=hold, settle_s=settle, repeat_s=repeat)
    for verdict in verdicts_of(rows, interval_s, limits, oddities):
        found += 1
        click.echo(document(verdict) if as_json else _line(verdict))
    for line in _said_of(oddities):
        click.echo(f"robust: {line}", err=True)
    if not found:
        click.echo("robust: no machine stays apart from its peers", err=True)
    return 0 if found else 1


def _of_run(path: str, *, as_json: bool) -> int:
    from robust_run.health.commands.outliers_of_run import standouts

    found = 0
    for each in standouts(path):
        found += 1
        line = f"{plain(each.machine)}  {plain(each.detail)}, at {_moment(each.at_unix_s)}"
        click.echo(document(each) if as_json else line)
    if not found:
        click.echo("robust: no node of that job stood out while it was compared with its peers", err=True)
    return 0 if found else 1


def _columns(text: str) -> Columns:
    from robust_run.health.outliers.rows import Columns

    given = {name: value for name, _, value in (part.partition("=") for part in text.split(",") if part)}
    if not set(given) <= {"time", "machine", "role"} or not all(given.values()):
        raise UserError(f"--columns {text!r}: write time=NAME,machine=NAME,role=NAME, or only those that differ")
    return Columns(**given)


def verdicts_of(
    rows: Iterator[MachineRow], interval_s: float, limits: OutlierLimits, oddities: Oddities
) -> Iterator[OutlierVerdict]:
    """Yield the verdicts on a stream of rows, as soon as they can be said. Raises UserError for rows that make no sense."""
    from robust_run.health.outliers.readings import Readings
    from robust_run.health.outliers.watch import default_watch, need_numpy

    need_numpy()
    watch = state = None
    readings = 0
    for fleet, reading in Readings(interval_s, oddities).of(rows):
        if watch is None or state is None or watch.fleet is not fleet:
            watch, readings = default_watch(fleet, limits), 0
            state = watch.begin()
        state, verdicts = watch.step(state, reading)
        readings += 1
        yield from verdicts
    if watch is None:
        raise UserError("there is no row with a value")
    if readings * interval_s < limits.settle_s:
        oddities.said.append(
            f"only {readings * interval_s:.0f} s of readings; no machine is accused in the first {limits.settle_s:.0f} s"
        )
    if not (watch.fleet.machines and max(map(watch.fleet.roles.count, set(watch.fleet.roles))) > 2):
        oddities.said.append(f"{len(watch.fleet.machines)} machines; telling the odd one needs three that do the same")


def _line(verdict: OutlierVerdict) -> str:
    lasted_s = verdict.at_s - verdict.since_s
    if verdict.state == "over":
        return f"{plain(verdict.machine)}  is like its peers again, at {_moment(verdict.at_s)}"
    start = f"{plain(verdict.machine)}  {'still ' * (verdict.state == 'still')}{plain(verdict.metric)}"
    since = f"since {_moment(verdict.since_s)} ({lasted_s:.0f} s)"
    if verdict.direction == "silent":
        return f"{start}  nothing comes from it, {since}, confidence {verdict.confidence:.2f}"
    value = "?" if verdict.value is None else f"{verdict.value:.4g}"
    peers = "?" if verdict.peers is None else f"{verdict.peers:.4g}"
    also = f"; also {', '.join(map(plain, verdict.also))}" if verdict.also else ""
    far = f"{value}, its peers {peers}: {abs(verdict.spreads):.1f} spreads {verdict.direction}"
    return f"{start}  {far}, {since}, confidence {verdict.confidence:.2f}{also}"


def _moment(at_s: float) -> str:
    from datetime import datetime, timezone

    if at_s < 1e8:  # no date: seconds of some clock
        return f"{at_s:.0f} s"
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f} s"


def _said_of(oddities: Oddities) -> Iterator[str]:
    if oddities.infinite:
        yield f"{oddities.infinite} values are infinite; they count as missing"
    if oddities.late:
        yield f"{oddities.late} rows came too late for their moment and were left out; sort by time"
    if oddities.ahead:
        yield f"{oddities.ahead} rows are far ahead of all other machines and were left out; is a clock wrong?"
    if oddities.unknown:
        yield f"{oddities.unknown} values of metrics that were not there at the beginning were left out"
    if oddities.relearnt:
        yield f"machines joined or changed roles {oddities.relearnt} times; each time, what is usual was learnt again"
    if oddities.skipped_s:
        yield f"nothing came from anybody for {oddities.skipped_s:.0f} s; what is usual was learnt again"
    yield from oddities.said
