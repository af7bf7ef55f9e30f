"""What `robust report` and `robust status` do with a folder of several runs."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.report.files import open_regular
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.several import OtherRuns
    from robust_run.report.pages.runs_page import RunRow, RunsPage

#: Runs without a page of their own that get one, the newest.
MOST_DRAWN = 20
#: The page's name, and what stands in its head: any other file of that name is somebody's, and stays.
PAGE_NAME, _MARK = "runs.html", b"robust-run</title>"
_HEAD_BYTES = 4096


def folder_of(run: str, log_dir: str, *, every: bool) -> str:
    """Return the folder of runs that is meant; empty: one run is. `every`: `--all` was given. Raises PlatformError."""
    from robust_run.errors import PlatformError
    from robust_run.launcher.operator.reading.runs import is_run, looked_in, runs_folder
    from robust_run.launcher.operator.reading.several import holds_runs

    where = runs_folder(log_dir, os.environ)
    if not every:
        is_one = not run or "\0" in run or is_run(run) or is_run(os.path.join(where, run))
        return "" if is_one or not holds_runs(run, _others()) else run
    folder = run or where
    if is_run(folder):
        raise PlatformError(f"{folder!r} is one run; name a folder of runs with --all")
    if not holds_runs(folder, _others()):
        raise PlatformError(
            f"no run in {repr(run) if run else looked_in(log_dir, os.environ)}; name a folder of runs or give --log-dir"
        )
    return folder


def _others() -> OtherRuns | None:
    """Return what knows of jobs of several roles; None: nothing does here."""
    context = click.get_current_context(silent=True)
    made = (context.find_object(dict) or {}).get("other_runs") if context is not None else None
    return made() if made is not None else None


def show_runs(folder: str, *, as_json: bool) -> int:
    """Print how all runs of a folder are."""
    import shutil

    from robust_run.launcher.operator.commands.about_run import has_colours, show_lines
    from robust_run.launcher.operator.reading.several import runs_page
    from robust_run.launcher.operator.views.run_rows import lines

    page = runs_page(folder, os.environ, others=_others())
    if as_json:
        print_document(page)
        return 0
    coloured = has_colours(sys.stdout, os.environ)
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 0
    show_lines(lines(page, width, lambda said, colour: click.style(said, fg=colour) if coloured else said))
    return 0


def write_runs(folder: str, *, html: str, as_json: bool) -> int:
    """Write the page of all runs of a folder, and say where it is. Raises PlatformError."""
    import msgspec

    from robust_run.atomic_file import write_file
    from robust_run.errors import PlatformError
    from robust_run.launcher.operator.commands.report_page_commands import copy
    from robust_run.launcher.operator.reading.several import runs_page
    from robust_run.report.pages.runs_page import runs_html, summary

    path = os.path.join(folder, PAGE_NAME)
    if not _may_replace(path):
        raise PlatformError(f"{path!r} is no page of robust-run and is not replaced; move it away")
    page = _with_pages(runs_page(folder, os.environ, others=_others()))
    try:
        write_file(path, runs_html(page).encode(errors="backslashreplace"))
    except OSError as error:
        raise PlatformError(f"cannot write {path!r}: {error.strerror}; is it a folder of yours?") from error
    if html:
        copy(path, html)
    if as_json:
        print_document({"report": path} | msgspec.structs.asdict(page))
    else:
        click.echo(f"robust: {plain(os.path.relpath(path))}: {plain(summary(page.runs))}")
    return 0


def _may_replace(path: str) -> bool:
    """Whether nothing is there, or an earlier page of ours."""
    try:
        with open_regular(path) as file:
            return _MARK in file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _with_pages(page: RunsPage) -> RunsPage:
    """Draw the pages of runs that have none, and anew those of runs that live: the list leads to them."""
    import msgspec

    drawn, rows = 0, []
    for row in page.runs:
        is_wanted = not row.problem and (row.state == "HUNG" or row.tone == "good" or not row.page)
        if is_wanted and drawn < MOST_DRAWN and _draw(row):
            drawn += 1
            row = msgspec.structs.replace(row, page=f"{os.path.basename(row.run_directory)}/report.html")  # noqa: PLW2901
        rows.append(row)
    return msgspec.structs.replace(page, runs=tuple(rows))


def _draw(row: RunRow) -> bool:
    """Draw a run's own page; False where that is not possible, or nothing is known of whether it lives."""
    from robust_run.errors import RobustRunError
    from robust_run.launcher.operator.pages.report_pages import write_report
    from robust_run.launcher.operator.reading.several import is_of
    from robust_run.launcher.operator.views.life import JobLife

    try:
        is_ours = os.stat(row.run_directory).st_uid == os.geteuid()
    except OSError:
        return False
    if not is_ours or row.state == "not known":  # nobody asked for files in another's folder
        return False
    life = JobLife(life="running")
    if row.state == "no controller":
        command = f"robust-run --resume {shlex.quote(row.run_directory)}"
        life = JobLife(life="gone", note="its controller is gone", command=command)
    others = _others()
    try:
        if others is not None and is_of(others, row.run_directory):
            others.draw(row.run_directory)
        else:
            write_report(row.run_directory, life)
    except RobustRunError:
        return False
    return True
