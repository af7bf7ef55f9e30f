"""`robust why | stacks | incident | timeline`: what ranks do, and what was seen when something was wrong."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.launcher.operator.commands.about_run import about_a_run, show_lines
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.which import Subject
    from robust_run.tracer.types import Scene


@click.command()
@about_a_run
def why(as_json: bool, **which: str) -> int:
    """Say who waits for whom at this moment; of a dead job, who did when it failed."""

    from robust_run.launcher.operator.commands import trace_show
    from robust_run.launcher.operator.reading.which import subject

    about = subject(os.environ, **which)
    if not about.is_alive:
        return _why_it_died(about, as_json)
    scene = about.scene(samples=3)
    if as_json:
        print_document(trace_show.explained(scene))
        return 0
    show_lines(trace_show.why_lines(scene, _conclusion(scene)))
    return 0


def _why_it_died(about: Subject, as_json: bool) -> int:

    from robust_run.errors import PlatformError
    from robust_run.launcher.operator.commands import trace_show
    from robust_run.launcher.operator.views.show import headline
    from robust_run.launcher.records.journal_reading import NoJournalError

    incidents = about.incidents()
    unsure = about.doubt()
    if not incidents:
        seen = unsure or "there was no incident; robust status says how it was left"
        raise PlatformError(f"nothing runs, and {seen}")
    if unsure:
        click.echo(f"robust: warning: {plain(unsure)}", err=True)
    scene = about.scene_of(incidents[-1].id)
    if as_json:
        print_document(trace_show.explained(scene) if scene is not None else incidents[-1])
        return 0
    with suppress(NoJournalError):  # that is said already
        job, _ = about.job()
        if not job.outcome:  # it may live, and have healed long ago: what follows is no picture of now
            show_lines([headline(job)])
    show_lines(trace_show.incident_lines(incidents[-1], scene))
    return 0


def _conclusion(scene: Scene) -> str:
    """Return what would be concluded if it stayed like this."""
    from robust_run.tracer.verdict import RankPatience, look

    verdict = look(scene, RankPatience(after_s=1.0, working_factor=1e9)).verdict
    return f"if this goes on: {verdict.sentence}" if verdict is not None else ""


@click.command()
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show all processes and threads of this rank, with their process ids.",
)
@about_a_run
def stacks(rank: int | None, as_json: bool, **which: str) -> int:
    """Show what all ranks are doing, those alike together."""

    from robust_run.errors import UserError
    from robust_run.launcher.operator.commands import trace_show
    from robust_run.launcher.operator.reading.which import subject

    scene = subject(os.environ, **which).scene(samples=2)
    if rank is None:
        print_document(scene) if as_json else show_lines(trace_show.stacks_lines(scene))
        return 0
    sight = next((sight for sight in scene.ranks if sight.rank == rank), None)
    if sight is None:
        raise UserError(f"--rank {rank}: the job has ranks 0 to {scene.world_size - 1}")
    print_document(sight) if as_json else show_lines(trace_show.rank_lines(sight))
    return 0


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("number", default="", metavar="[N]")
@click.option("--all", "every", is_flag=True, help="List all incidents.")
@about_a_run
def incident(number: str, every: bool, as_json: bool, **which: str) -> int:
    """Show incident N, else the newest: the verdict, what it rests on, and what was done."""

    from robust_run.errors import UserError
    from robust_run.launcher.operator.commands import trace_show
    from robust_run.launcher.operator.reading.which import subject

    if number.startswith("-"):
        raise UserError(f"there is no incident or option {number!r}; incidents are numbered from 1")
    if number and not number.isdecimal() and not which["run"]:
        number, which["run"] = "", number  # only a run was named
    about = subject(os.environ, **which)
    incidents = about.incidents()
    unsure = about.doubt() if every or not incidents else ""
    if not incidents:
        seen = unsure or ("no incident so far" if about.is_alive else "there was no incident")
        click.echo(f"robust: {plain(seen)}", err=True)
        return 1
    wanted = int(number) if number.isdecimal() and len(number) < 9 else incidents[-1].id
    named = tuple(each for each in incidents if each.id == wanted)
    if (number and not number.isdecimal()) or not named:
        there = f"there is no incident {number!r}; there are {incidents[0].id} to {incidents[-1].id}"
        raise UserError("; ".join(filter(None, (there, about.doubt()))))
    if unsure:
        click.echo(f"robust: warning: {plain(unsure)}", err=True)
    chosen = incidents if every else named
    if as_json:
        print_document(chosen, "incidents") if every else print_document(chosen[0])
        return 0
    for each in chosen:
        show_lines(trace_show.incident_lines(each, about.scene_of(each.id)))
    return 0


@click.command()
@click.option(
    "--output", "-o", default="", metavar="FILE", help="Chrome trace JSON (default: timeline.json in the run)."
)
@click.option("--heatmap", default="", metavar="FILE", help="Also draw each rank's own time per step (.svg or .png).")
@click.option(
    "--attempt", type=click.IntRange(min=0), metavar="N", help="Attempt to draw (default: the newest with traces)."
)
@about_a_run
def timeline(output: str, heatmap: str, attempt: int | None, as_json: bool, **which: str) -> int:
    """Write the last calls and steps of all ranks as a timeline for Perfetto or chrome://tracing."""

    from robust_run.launcher.operator.commands import pictures
    from robust_run.launcher.operator.reading.which import subject

    drawn = pictures.draw(subject(os.environ, **which), attempt, output, heatmap)
    if as_json:
        print_document(drawn)
        return 0
    click.echo(
        f"robust: {drawn.calls} calls of {drawn.ranks} ranks (attempt {drawn.attempt}) in {plain(drawn.timeline)}"
    )
    click.echo("robust: open it at https://ui.perfetto.dev or chrome://tracing")
    if drawn.heatmap:
        click.echo(f"robust: steps of {drawn.ranks} ranks drawn in {plain(drawn.heatmap)}")
    return 0


COMMANDS = (why, stacks, incident, timeline)
