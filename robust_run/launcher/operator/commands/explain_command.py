"""`robust explain`: why an incident went as it did, rung by rung. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import os

import click

from robust_run.json_output import document
from robust_run.launcher.operator.commands.job_commands import about_a_run, show_lines


@click.command()
@click.argument("incident", type=click.IntRange(min=1), metavar="INCIDENT")
@about_a_run
def explain(incident: int, as_json: bool, **which: str) -> int:
    """Tell every decision about an incident: the verdict and its rule, each rung of the ladder, what checks said."""
    from robust_run.errors import UserError
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.views.explaining import Explaining

    about = subject(os.environ, **which)
    explaining = Explaining()
    page = about.events(1)
    while page.events:
        for event in page.events:
            explaining.learn(event.line)
        page = about.events(page.next)
    found = explaining.of(incident)
    if found is None:
        count = explaining.count
        there = f"there are {count}" if count else "nothing has gone wrong"
        raise UserError(f"there is no incident {incident} in this run: {there}; robust events tells them")
    show_lines([document(found)] if as_json else found.lines())
    return 0


COMMANDS = (explain,)
