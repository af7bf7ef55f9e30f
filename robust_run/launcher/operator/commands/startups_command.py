"""What `robust report --startups` does: how the jobs of some folders started, and which nodes are slow again and again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.report.startup.profile_types import StartProfile


def startups_report(folders: Sequence[str], *, html: str, as_json: bool) -> int:
    """Show it, or write the page. Exit code 1 where no start is known. Raises UserError for a page that cannot be written."""
    from robust_run.launcher.operator.reading.startups import read_profile
    from robust_run.report.startup import profile_text

    profile = read_profile(folders)
    if html:
        _write(html, profile)
    if as_json:
        print_document(profile)
    elif html:
        click.echo(f"robust: {plain(os.path.relpath(html))}: {plain(profile_text.summary(profile))}")
    else:
        for line in profile_text.lines(profile, max(60, shutil.get_terminal_size((100, 24)).columns)):
            click.echo(line)
    return 0 if profile.starts else 1


def _write(path: str, profile: StartProfile) -> None:
    from robust_run.atomic_file import write_file
    from robust_run.errors import UserError
    from robust_run.report.pages.startups_page import startups_html

    try:
        write_file(path, startups_html(profile, time.time()).encode(errors="backslashreplace"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--html {path!r}: {reason}; name a file that can be written") from error
