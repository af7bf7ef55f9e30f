"""What `robust report` does: the pages of a job, written from its run directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.launcher.operator.pages.report_pages import PagesWritten


def copy(page: str, to: str) -> None:
    """Write a page to another place, too. Raises PlatformError."""
    import shutil

    from robust_run.errors import PlatformError

    try:
        shutil.copyfile(page, to)
    except OSError as error:
        raise PlatformError(
            f"cannot write {to!r}: {error.strerror or error}; name a file in a folder of yours"
        ) from error


def write_pages(*, as_json: bool = False, html: str = "", run: str = "", log_dir: str = "", **reach: str) -> int:
    """Write the pages of the run that the options name, and say where they are. Raises PlatformError, UserError."""

    from robust_run.errors import UserError
    from robust_run.launcher.operator.pages.report_pages import write_report
    from robust_run.launcher.operator.reading.which import subject

    how = {"url": "", "token_file": "", "tls_ca": "", **reach}
    about = subject(os.environ, run=run, log_dir=log_dir, **how)
    if not about.folder:
        raise UserError("pages are written to the run directory: name the run, not --url (a browser shows them there)")
    written = write_report(about.folder, about.life())
    if html:
        copy(written.report, html)
    if as_json:
        print_document(written)
        return 0
    several = f", and {len(written.incidents)} of incidents beside it" if written.incidents else ""
    click.echo(f"robust: {plain(os.path.relpath(written.report))}{several}")
    if written.unread:
        click.echo(f"robust: {plain(written.unread)}")
    if written.life == "running":
        click.echo(f"robust: {plain(of_a_live_job(written, about.folder))}")
    elif written.note:
        click.echo(f"robust: {plain('; '.join(filter(None, (written.note, written.todo))))}")
    return 0


def of_a_live_job(written: PagesWritten, folder: str) -> str:
    """Return what to know of pages of a job that runs: of when they are, and where they renew themselves."""
    from robust_run.errors import PlatformError
    from robust_run.launcher.operator.reading.place import TOKEN_NAME, read_place
    from robust_run.report.pages.words import clock_time

    try:
        place = read_place(folder)
    except PlatformError:
        place = None
    said = f"the job runs: this is how it was at {clock_time(written.at_unix_s)}"
    if place is None or not place.http:
        return f"{said}; robust top shows it live"
    return f"{said}; it is live at {place.http} (the password is in {os.path.join(folder, TOKEN_NAME)})"
