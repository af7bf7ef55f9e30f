"""`robust explain`: why an incident went as it did, rung by rung. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from robust_run.json_output import document
from robust_run.launcher.operator.commands.about_run import about_a_run, show_lines
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.which import Subject
    from robust_run.launcher.operator.views.explaining import Explaining


@click.command()
@click.argument("number", default="", metavar="[INCIDENT]")
@about_a_run
def explain(number: str, as_json: bool, **which: str) -> int:
    """Tell every decision about an incident, else the newest: verdict and rule, rungs of the ladder, what checks said."""
    from robust_run.errors import UserError
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.views.explaining import is_of, of_file

    if number and not number.isdecimal() and not which["run"]:
        number, which["run"] = "", number  # only a run was named
    if number and (not number.isdecimal() or len(number) > 8):
        raise UserError(f"{number!r} is no number of an incident; they are counted from 1")
    about = subject(os.environ, **which)
    kept = about.incidents()  # first: an incident is in the journal before it has a file
    explaining, damage = _told(about, has_files=bool(kept))
    wanted = int(number or max(explaining.count, kept[-1].id if kept else 0))
    found, file = explaining.of(wanted), next((each for each in kept if each.id == wanted), None)
    if file is not None and (found is None or not is_of(found, file)):
        found = of_file(file)
        if unsure := damage or about.doubt():
            click.echo(f"robust: warning: {plain(unsure)}", err=True)
    if found is None:
        return _not_there(about, wanted if number else 0, max(explaining.count, len(kept)))
    show_lines([document(found)] if as_json else found.lines())
    return 0


def _told(about: Subject, *, has_files: bool) -> tuple[Explaining, str]:
    """Return what the journal tells; and why it tells nothing, where incidents have files. Raises RobustRunError."""
    from robust_run.launcher.operator.views.explaining import Explaining
    from robust_run.launcher.records.journal_reading import NoJournalError

    explaining = Explaining()
    try:
        page = about.events(1)
        while page.events:
            for event in page.events:
                explaining.learn(event.line)
            page = about.events(page.next)
    except NoJournalError as error:
        if not has_files:
            raise
        return explaining, str(error)
    return explaining, ""


def _not_there(about: Subject, wanted: int, count: int) -> int:
    """Say that there is no such incident, or none at all (0). Raises UserError where one is asked for."""
    from robust_run.errors import UserError

    unsure = about.doubt()
    if not (wanted or count):
        click.echo(f"robust: {plain(unsure) or 'there was no incident'}", err=True)
        return 1
    there = f"there are {count}" if count else "nothing has gone wrong"
    if unsure:
        raise UserError(f"incident {wanted} is not known: {unsure}")
    raise UserError(f"there is no incident {wanted} in this run: {there}; robust events tells them")


COMMANDS = (explain,)
