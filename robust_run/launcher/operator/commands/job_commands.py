"""`robust status | nodes | events | evict | readmit | restart | stop`. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from robust_run.launcher.operator.commands.about_run import about_a_run, has_colours, show_lines

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.which import Subject
    from robust_run.launcher.operator.views.status_types import EventsView

#: What one question of `robust events --follow` waits for news.
FOLLOW_S = 20.0


def _named(_: click.Context, __: click.Parameter, node: str) -> str:
    """Refuse a name that is empty, as a script's unset variable makes it."""
    if not node.strip():
        raise click.BadParameter("it is empty; robust nodes lists the nodes")
    return node


@click.command()
@click.option("--all", "every", is_flag=True, help="All runs in the folder, a line for each.")
@about_a_run
def status(as_json: bool, every: bool, **which: str) -> int:
    """Say how a job is, dead or alive. RUN is a run directory or a run's name; without it, the newest.

    A folder of runs, or --all, means all runs in it.
    """
    from robust_run.launcher.operator.commands.several_commands import folder_of, show_runs

    if every and which["url"]:
        raise click.UsageError("--all is of a folder of runs, --url of one job; give one of them")
    if not which["url"] and (folder := folder_of(which["run"], which["log_dir"], every=every)):
        return show_runs(folder, as_json=as_json)
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.views import show

    job, encoded = subject(os.environ, **which).job()
    if as_json:
        show_lines([encoded.decode()])
        return 0
    first, *others = show.status_lines(job)
    if has_colours(sys.stdout, os.environ):
        first = click.style(first, fg=_COLOURS[show.tone(job)], bold=True)
        others = [_coloured(line) for line in others]
    show_lines([first, *others])
    return 0


#: Of the first line of a status, by `show.tone`.
_COLOURS = {"good": "green", "busy": "yellow", "bad": "red", "over": "blue"}


def _coloured(line: str) -> str:
    """Return a line of a status with its heading set apart."""
    heading, colon, rest = line.partition(": ")
    if heading.strip() == "next":
        return click.style(line, fg="yellow", bold=True)
    return f"{click.style(heading + colon, bold=True)}{rest}" if colon and len(heading) < 24 else line


@click.command()
@about_a_run
def nodes(as_json: bool, **which: str) -> int:
    """List the nodes of a job: those at work, standbys, evicted and lost ones."""
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.views import show

    view, encoded = subject(os.environ, **which).nodes()
    show_lines([encoded.decode()] if as_json else show.node_lines(view))
    return 0


@click.command()
@click.option("-n", "--last", type=click.IntRange(min=1), metavar="LINES", help="Show only the last N events.")
@click.option("-f", "--follow", is_flag=True, help="Print new events until the job is over.")
@click.option("--all", "everything", is_flag=True, help="Show internal events, too.")
@about_a_run
def events(as_json: bool, last: int | None, follow: bool, everything: bool, **which: str) -> int:
    """Tell what happened to a job, dead or alive. --json prints the lines of its journal."""
    from collections import deque

    from robust_run.launcher.operator.commands.story import Story
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.views.show import clean

    story = Story(everything=everything)

    def lines_of(page: EventsView) -> list[str]:
        if as_json:
            return [bytes(event.line).decode() for event in page.events]
        return [line for event in page.events for line in story.tell(event.line)]

    about = subject(os.environ, **which)
    past: deque[str] = deque(maxlen=last)
    after = 1
    for page in _past(about):
        after = page.next
        if last is None:
            show_lines(lines_of(page))
        else:
            past.extend(lines_of(page))
    show_lines(past)
    while follow and about.is_alive:
        page = about.events(after, wait_s=FOLLOW_S)
        after = page.next
        show_lines(lines_of(page))
    for page in _past(about, after):  # what came between the last answer and the controller's end
        show_lines(lines_of(page))
    if unsure := about.doubt():
        click.echo(f"robust: warning: {clean(unsure)}", err=True)
    return 0


def _past(about: Subject, after: int = 1) -> Iterator[EventsView]:
    """Yield what the journal holds already, from this line on."""
    page = about.events(after)
    while page.events:
        yield page
        page = about.events(page.next)


@click.command()
@click.argument("node", callback=_named)
@click.option("--reason", default="", metavar="TEXT", help="Reason, kept in the journal.")
@click.option("--force", is_flag=True, help="Evict a host even if it has not joined yet.")
@about_a_run
def evict(node: str, reason: str, force: bool, as_json: bool, **which: str) -> int:
    """Take a host out of a job; a standby takes its place, or the job goes on without it."""
    from robust_run.launcher.operator.reading.client import node_path

    return _act(node_path(node, "evict"), as_json, which, reason=reason, force=force)


@click.command()
@click.argument("node", callback=_named)
@about_a_run
def readmit(node: str, as_json: bool, **which: str) -> int:
    """Allow an evicted host again."""
    from robust_run.launcher.operator.reading.client import node_path

    return _act(node_path(node, "readmit"), as_json, which)


@click.command()
@click.option("--reason", default="", metavar="TEXT", help="Reason, kept in the journal.")
@about_a_run
def restart(reason: str, as_json: bool, **which: str) -> int:
    """End the attempt that runs and start the next; it does not count as a failure."""
    return _act("/v1/restart", as_json, which, reason=reason)


@click.command()
@click.option("--now", is_flag=True, help="Kill the workers at once, without time to end by themselves.")
@about_a_run
def stop(now: bool, as_json: bool, **which: str) -> int:
    """End a job as SIGTERM would, on all its nodes."""
    return _act("/v1/stop", as_json, which, now=now)


def _act(path: str, as_json: bool, which: dict[str, str], **wish: Any) -> int:
    """Send a wish to the controller and say what came of it."""
    import getpass
    import socket

    import msgspec

    from robust_run.launcher.operator.reading.which import controller
    from robust_run.launcher.operator.views.operations import OperatorWish
    from robust_run.launcher.operator.views.show import clean
    from robust_run.launcher.operator.views.status_types import ActionView

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    body = OperatorWish(by=f"{user}@{socket.gethostname()}", **wish)
    answer = controller(os.environ, **which).post(path, body)
    if as_json:
        click.echo(answer.decode())
        return 0
    view = msgspec.json.decode(answer, type=ActionView)
    click.echo(f"robust: {clean(view.done)}")
    if view.warning:
        click.echo(f"robust: warning: {clean(view.warning)}", err=True)
    return 0


COMMANDS = (status, nodes, events, evict, readmit, restart, stop)
