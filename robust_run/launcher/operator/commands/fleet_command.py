"""`robust fleet`: what the runs of some folders add up to. Imports what it needs when it is asked for."""

from __future__ import annotations

import math
import os
import shlex
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from robust_run.clock import seconds_of
from robust_run.errors import RobustRunError, UserError
from robust_run.json_output import document
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.fleet.results import Fleet
    from robust_run.launcher.operator.reading.fleet import FleetReader


@click.command()
@click.argument("folders", nargs=-1, metavar="[DIR]...")
@click.option("--since", default="", metavar="TIME", help="Only what happened after: 30d (ago), or 2026-11-01.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--html", default="", metavar="FILE", help="Write a page with pictures, and all runs.")
@click.option(
    "--prometheus",
    default="",
    metavar="FILE",
    help="Write figures for node_exporter's textfile collector, a name that ends in .prom; -: print them.",
)
@click.option("--watch", default="", metavar="TIME", help="Do it again every so often, until Ctrl-C: 30s.")
def fleet(**asked: Any) -> int:
    """Say what the runs of some folders add up to: ETTR, failures by kind and node, lemon nodes, what starting costs.

    DIR: a folder of runs, as robust-run's --log-dir, or one run directory; without any: robust-runs/ here. Rates come with exact
    95 % intervals; a node is called a lemon only if it fails more often than chance explains.
    """
    from robust_run.launcher.operator.reading.fleet import FleetReader
    from robust_run.launcher.operator.reading.run_facts import lives_here
    from robust_run.launcher.operator.reading.runs import runs_folder

    since_s = _since(asked["since"], time.time()) if asked["since"] else None
    every_s = _every(asked["watch"]) if asked["watch"] else 0.0
    if asked["prometheus"] not in ("", "-") and not asked["prometheus"].endswith(".prom"):
        raise UserError(
            f"--prometheus {asked['prometheus']!r}: a textfile collector reads names that end in .prom; give it one, or -"
        )
    reader = FleetReader(asked["folders"] or [runs_folder("", os.environ)], lives_here(os.environ))
    found = _read(reader, since_s)
    _show(found, asked, every_s)
    while every_s:
        try:
            time.sleep(every_s)
            _show(_read(reader, since_s), asked, every_s)
        except KeyboardInterrupt:
            return 0
        except RobustRunError as error:  # it may be back the next time; files stay as they are meanwhile
            click.echo(f"robust: {plain(str(error))}", err=True)
    return 0 if found.runs else 1


def _read(reader: FleetReader, since_s: float | None) -> Fleet:
    import msgspec

    from robust_run.fleet.totals import fold

    now_s = time.time()
    seen = reader.read(now_s)
    return msgspec.structs.replace(
        fold(seen.runs, since_s), at_unix_s=now_s, folders=seen.folders, skipped=seen.skipped
    )


def _show(found: Fleet, asked: dict[str, Any], every_s: float) -> None:
    """Write the files that are asked for, and print the rest."""
    from robust_run.fleet.show import lines_of, summary

    files = [path for path in (asked["html"], asked["prometheus"]) if path not in ("", "-")]
    if asked["html"]:
        _write("--html", asked["html"], _page(found, asked["html"], every_s))
    if asked["prometheus"]:
        _write("--prometheus", asked["prometheus"], _figures(found))
    if asked["as_json"]:
        click.echo(document(found))
    elif files:
        click.echo(f"robust: {plain(', '.join(map(os.path.relpath, files)))}: {plain(summary(found))}")
    elif asked["prometheus"] != "-":
        if every_s:
            click.clear()
        for line in lines_of(found):
            click.echo(line)


def _page(found: Fleet, path: str, every_s: float) -> bytes:
    from robust_run.fleet.page import fleet_html

    folder = os.path.dirname(os.path.abspath(path))
    links = {}
    for each in found.lines:
        own = os.path.join(each.place, "report.html")
        if each.place and os.path.isfile(own):
            links[each.place] = os.path.relpath(own, folder)
    again = shlex.join(["robust", "fleet", *found.folders, *_since_words(found), "--html", path])
    return fleet_html(found, again, links, every_s).encode(errors="backslashreplace")


def _since_words(found: Fleet) -> list[str]:
    if found.since_unix_s is None:
        return []
    return ["--since", datetime.fromtimestamp(found.since_unix_s).astimezone().isoformat(timespec="seconds")]


def _figures(found: Fleet) -> bytes:
    from robust_run.fleet.gauges import families
    from robust_run.report.metrics import exposition

    return exposition(families(found))[0]


def _write(option: str, path: str, data: bytes) -> None:
    from robust_run.atomic_file import write_file

    if path == "-":
        click.echo(data.decode(), nl=False)
        return
    try:
        write_file(path, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{option} {path!r}: {reason}; name a file that can be written") from error


def _since(text: str, now_s: float) -> float:
    """Return the moment that is meant, seconds since the epoch. Raises UserError."""
    ago_s = seconds_of(text)
    try:
        moment_s = now_s - ago_s if not math.isnan(ago_s) else _moment(text)
    except (ValueError, OverflowError):
        moment_s = -1.0
    if not 0 <= moment_s <= now_s:
        raise UserError(f"--since {text!r} is no time in the past; write 12h, 30d or 2026-11-01")
    return moment_s


def _moment(text: str) -> float:
    written = f"{text[:-1]}+00:00" if text.endswith("Z") else text
    return datetime.fromisoformat(written).timestamp()


def _every(text: str) -> float:
    seconds = seconds_of(text)
    if not 1.0 <= seconds <= 86400.0:
        raise UserError(f"--watch {text!r}: write a time as 30s or 5m, 1 s to 1 day")
    return seconds
