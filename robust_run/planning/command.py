"""`robust plan`: months of failures in a minute, before there is a cluster. Imports what it needs when it is asked for."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from robust_run.clock import seconds_of
from robust_run.errors import UserError
from robust_run.json_output import document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from robust_run.planning.advising import Planned
    from robust_run.planning.learning import Learned
    from robust_run.planning.mix import MixFile
    from robust_run.planning.words import Plan

#: Standbys that any job may have; larger ones as many as they have nodes.
FEW_STANDBYS = 64


@click.command()
@click.option("--nodes", required=True, type=click.IntRange(2, 20_000), help="Nodes of the job, standbys not counted.")
@click.option("--gpus-per-node", default=8, show_default=True, type=click.IntRange(1, 64))
@click.option("--days", default=90.0, show_default=True, type=click.FloatRange(0, 3650, min_open=True))
@click.option(
    "--standby", default="auto", show_default=True, metavar="N|auto", help="auto: 99 % of the nodes that fail on a day."
)
@click.option("--mix", default="", metavar="FILE", help="Faults, times and costs of saving (docs/plan.md). TOML.")
@click.option(
    "--from",
    "learns_from",
    multiple=True,
    metavar="DIR",
    help="Learn rates and times of the runs in these folders, as far as they have shown any.",
)
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--rate", type=click.FloatRange(0, 1000, min_open=True), metavar="N", help="Faults per 1,000 node-days, in all."
)
@click.option("--ckpt-every", default="", metavar="TIME", help="Between two saves to storage: 30m.")
@click.option("--ckpt-blocks", default="", metavar="TIME", help="Training stands still so long for each.")
@click.option("--no-memory", is_flag=True, help="No copies in memory.")
@click.option("--torch-timeout", default="10m", show_default=True, metavar="TIME", help="Of the process groups.")
@click.option("--price", default=0.0, metavar="MONEY", type=click.FloatRange(0, 1e6), help="Of one GPU for an hour.")
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--seed", "first_seed", default=0, show_default=True, help="The first of them.")
@click.option("--advice/--no-advice", default=True, show_default=True, help="Try other settings, too.")
@click.option("--processes", default=0, type=click.IntRange(0, 1024), help="0: one for each CPU.")
@click.option("--html", default="", metavar="FILE", help="Write a page with pictures.")
@click.option("--json", "as_json", is_flag=True)
def plan(**asked: Any) -> int:
    """Say what a job of so many nodes will lose to faults, to what, and what would help.

    Months of the job pass in virtual time, once for each seed: the decisions are those of robust-run itself, nodes, faults and
    people are simulated. How often what fails, and how long what takes, is ByteRobust's where it is published; --from puts what
    your own jobs have shown in its place, as far as they have shown enough, and --mix what you know.
    """
    import msgspec

    from robust_run.planning.advising import planned
    from robust_run.planning.progress import Progress
    from robust_run.planning.show import advice_lines, learned_lines, lines_of

    first, count = asked["first_seed"], asked["seeds"]
    seeds = range(first, first + count)

    def show(lines: Iterable[str]) -> None:
        if not asked["as_json"]:
            click.echo("\n".join(lines))

    wanted, learned = _plan_of(asked)
    if learned is not None:
        show(learned_lines(learned))
    found = planned(
        wanted,
        seeds,
        asked["processes"],
        advises=asked["advice"],
        said=Progress(sys.stderr, time.monotonic).says,
        first=lambda summary: show(lines_of(summary)),
    )
    found = msgspec.structs.replace(found, learned=learned)
    if asked["html"]:
        _write(asked["html"], found)
    if found.advice is not None:
        show(advice_lines(found.advice))
    if asked["as_json"]:
        click.echo(document(found))
    return 0


def _plan_of(asked: dict[str, Any]) -> tuple[Plan, Learned | None]:
    """Return the plan that a command line asks for, and what its numbers were learned of. Raises UserError."""
    import msgspec

    from robust_run.planning import mix as mixes
    from robust_run.planning.words import Mechanisms, Plan

    read = mixes.load(asked["mix"]) if asked["mix"] else mixes.MixFile()
    learned = None
    if asked["learns_from"]:
        read, learned = _learned([*asked["learns_from"], *asked["more"]], read, asked["nodes"])
    elif asked["more"]:
        raise UserError(
            f"{asked['more'][0]!r}: robust plan takes options only; is --from missing before a folder of runs?"
        )
    for option in ("days", "rate", "price"):
        if math.isnan(asked[option] or 0.0):
            raise UserError(f"--{option} is no number")
    faults = mixes.scaled(read.mix, asked["rate"]) if asked["rate"] is not None else read.mix
    saving = read.saving
    if asked["ckpt_every"]:
        saving = msgspec.structs.replace(saving, every_s=_time("--ckpt-every", asked["ckpt_every"], 1.0))
    if asked["ckpt_blocks"]:
        saving = msgspec.structs.replace(saving, blocks_s=_time("--ckpt-blocks", asked["ckpt_blocks"], 0.0))
    wanted = Plan(
        nodes=asked["nodes"],
        gpus_per_node=asked["gpus_per_node"],
        days=asked["days"],
        standby=_standby(asked["standby"], asked["nodes"], mixes.total(faults)),
        mix=faults,
        times=read.times,
        saving=saving,
        uses=Mechanisms(memory=not asked["no_memory"]),
        torch_timeout_s=_time("--torch-timeout", asked["torch_timeout"], 1.0),
        price=asked["price"],
    )
    return wanted, learned


def _learned(folders: list[str], base: MixFile, nodes: int) -> tuple[MixFile, Learned]:
    """Return what runs have shown. Raises PlatformError: a folder cannot be listed, or no run is in any."""
    from robust_run.fleet.found import Found
    from robust_run.fleet.runs import once
    from robust_run.launcher.operator.reading.fleet import FleetReader
    from robust_run.launcher.operator.reading.run_facts import lives_here
    from robust_run.planning.learning import learned

    seen = FleetReader(folders, lives_here(os.environ)).read(time.time())
    left_out = {each.why: each.count for each in seen.skipped}
    return learned(Found(facts=tuple(once(seen.runs)), left_out=left_out), base, nodes)


def _write(path: str, found: Planned) -> None:
    import shlex

    from robust_run.atomic_file import write_file
    from robust_run.planning.page import plan_html

    try:
        write_file(path, plan_html(found, shlex.join(["robust", *sys.argv[1:]])).encode())
    except OSError as error:
        raise UserError(f"--html {path} cannot be written: {error.strerror}") from error


def _time(option: str, text: str, least_s: float) -> float:
    seconds = seconds_of(text)
    if not least_s <= seconds <= 86400 * 30:
        raise UserError(f"{option} {text!r}: write a time as 90s, 30m or 2h, {least_s:g} s to 30 days")
    return seconds


def _standby(text: str, nodes: int, per_1000_node_days: float) -> int:
    from robust_run.launcher.core.spares import standby_count

    if text == "auto":
        return standby_count(nodes, min(per_1000_node_days / 1000.0, 1.0))
    most = max(nodes, FEW_STANDBYS)
    if not text.isdecimal() or int(text) > most:
        raise UserError(f"--standby {text!r}: write a number up to {most} for {nodes} nodes, or auto")
    return int(text)
