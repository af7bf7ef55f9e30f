"""`robust report`: what a job looks like afterwards, and while it runs, from its run directory alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.launcher.operator.commands.about_run import complete_run
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.report.startup.types import Startup

NARROWEST = 60


@click.command()
@click.option(
    "--startup", is_flag=True, help="Show where the time of a start went, by phase and rank, and what shortens it."
)
@click.option(
    "--startups",
    is_flag=True,
    help="Of many runs: seconds of each phase by number of nodes, and nodes that are slow again and again.",
)
@click.option(
    "--what-if",
    "what_if",
    is_flag=True,
    help="How long a step would take if a rank, a stage or a kind of work were as its peers. RUN may be a file with a trace.",
)
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="Attempt to report on (default: the newest).")
@click.option(
    "--all", "every", is_flag=True, help="All runs in the folder, on one page; with --startup, show every rank."
)
@click.option(
    "--html",
    default="",
    metavar="FILE",
    help="Write the page to this file, too.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--log-dir", default="", metavar="FOLDER", help="Folder of the runs (default: ./robust-runs).")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
def report(  # noqa: PLR0913, PLR0917 - options of one command
    startup: bool,
    startups: bool,
    what_if: bool,
    attempt: int | None,
    every: bool,
    html: str,
    as_json: bool,
    log_dir: str,
    runs: tuple[str, ...],
) -> int:
    """Report on a job, dead or alive. RUN is a run directory or a run's name; without it, the newest.

    A folder of runs, or --all, means all runs in it. --startups takes several of both.
    """
    from robust_run.errors import UserError
    from robust_run.launcher.operator.commands.several_commands import folder_of, write_runs
    from robust_run.launcher.operator.reading.runs import find_run, runs_folder

    if startups:
        from robust_run.launcher.operator.commands.startups_command import startups_report

        if startup or attempt is not None:
            raise UserError("--startups is of many runs; give it without --startup and --attempt, which are of one")
        where = runs_folder(log_dir, os.environ)
        paths = [run if os.path.lexists(run) else os.path.join(where, run) for run in runs if "\0" not in run]
        return startups_report(paths or [where], html=html, as_json=as_json)
    if len(runs) > 1:
        raise UserError(f"{len(runs)} runs are named; name one, a folder of runs, or give --startups")
    run = runs[0] if runs else ""
    if what_if:
        from robust_run.launcher.operator.commands.what_if_command import what_if_report

        if startup or every or html:
            raise UserError("--what-if goes with --attempt, --json and --log-dir, and with nothing else")
        return what_if_report(run, attempt, log_dir=log_dir, as_json=as_json)
    if not startup and (folder := folder_of(run, log_dir, every=every)):
        return write_runs(folder, html=html, as_json=as_json)

    path = find_run(run, log_dir, os.environ)
    if startup:
        return startup_report(path, attempt, every=every, html=html, as_json=as_json)
    return job_report(path, html=html, as_json=as_json)


def job_report(path: str, *, html: str, as_json: bool) -> int:
    """Write the pages of the job in this run directory. Raises PlatformError, UserError."""
    from robust_run.launcher.operator.commands.report_page_commands import write_pages

    return write_pages(run=path, html=html, as_json=as_json)


def startup_report(path: str, number: int | None, *, every: bool, html: str, as_json: bool) -> int:
    """Show what a start was spent on. Raises PlatformError, UserError; exit code 1 where there is nothing to show."""

    from robust_run.report.startup.advise import advise, chosen

    startup = _read(path)
    if startup is None or not startup.attempts:
        click.echo(
            "robust: nothing is known of its start yet, or it is not timed (ROBUST_STARTUP=0, ROBUST_TRACE=0)", err=True
        )
        return 1
    if chosen(startup, number) is None:
        known = ", ".join(str(each.attempt) for each in startup.attempts[-16:])
        from robust_run.errors import UserError

        raise UserError(f"--attempt {number}: nothing is known of that start; there are {known}")
    if html:
        _write(html, startup)
    if as_json:
        print_document({"startup": startup, "advice": advise(startup, number)})
    elif not html:
        _show(startup, number, every=every)
    return 0


def _read(path: str) -> Startup | None:
    from robust_run.report.files import startup as file

    return file.read(os.path.join(path, file.NAME))


def _show(startup: Startup, number: int | None, *, every: bool) -> None:
    import shutil

    from robust_run.report.startup import text

    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def paint(letters: str, colour: str) -> str:
        return click.style(letters, fg=colour) if coloured and colour else letters

    width = max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    for line in text.lines(startup, number, width, paint, every=every):
        click.echo(line)


def _write(path: str, startup: Startup) -> None:
    from robust_run.errors import UserError
    from robust_run.report.startup import draw

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(draw.page(startup))
    except (OSError, ValueError) as error:
        raise UserError(
            f"--html {path!r}: {getattr(error, 'strerror', None) or error}; name a file that can be written"
        ) from error
    click.echo(f"robust: the starts of {startup.run_id} are in {plain(path)}")
