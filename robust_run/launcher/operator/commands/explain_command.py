"""`robust explain`: why an incident went as it did, rung by rung. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import os

import click

from robust_run.json_output import document
from robust_run.launcher.operator.commands.about_run import about_a_run, show_lines


@click.command()
@click.argument("number", default="", metavar="[INCIDENT]")
@about_a_run
def explain(number: str, as_json: bool, **which: str) -> int:
    """Tell every decision about an incident, else the newest: verdict and rule, rungs of the ladder, what checks said."""
    from robust_run.errors import UserError
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.views.explaining import Explaining

    if number and not number.isdecimal() and not which["run"]:
        number, which["run"] = "", number  # only a run was named
    if number and (not number.isdecimal() or len(number) > 8):
        raise UserError(f"{number!r} is no number of an incident; they are counted from 1")
    about = subject(os.environ, **which)
    explaining = Explaining()
    page = about.events(1)
    while page.events:
        for event in page.events:
            explaining.learn(event.line)
        page = about.events(page.next)
    wanted = int(number or explaining.count)
    found = explaining.of(wanted)
    if found is None:
        count = explaining.count
        if not (number or count):
            click.echo("robust: there was no incident", err=True)
            return 1
        there = f"there are {count}" if count else "nothing has gone wrong"
        raise UserError(f"there is no incident {wanted} in this run: {there}; robust events tells them")
    show_lines([document(found)] if as_json else found.lines())
    return 0


COMMANDS = (explain,)
