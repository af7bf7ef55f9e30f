"""What `robust report` does: the pages of a job, written from its run directory alone."""

from __future__ import annotations

import os

import click


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
    import msgspec

    from robust_run.errors import UserError
    from robust_run.launcher.api.report_pages import write_report
    from robust_run.launcher.api.which import subject

    how = {"url": "", "token_file": "", "tls_ca": "", **reach}
    about = subject(os.environ, run=run, log_dir=log_dir, **how)
    if not about.folder:
        raise UserError("pages are written to the run directory: name the run, not --url (a browser shows them there)")
    written = write_report(about.folder)
    if html:
        copy(written.report, html)
    if as_json:
        click.echo(msgspec.json.encode(written))
        return 0
    several = f", and {len(written.incidents)} of incidents beside it" if written.incidents else ""
    click.echo(f"robust: {os.path.relpath(written.report)}{several}")
    if written.unread:
        click.echo(f"robust: {written.unread}")
    if about.is_alive:
        job, _ = about.job()
        click.echo(
            f"robust: it runs ({job.phase}); its live page is at the URL in {os.path.join(about.folder, 'api.json')}"
        )
    return 0
