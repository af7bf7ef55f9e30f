"""`robust roles`: how a job of several roles is, and what it is asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import click

from robust_run.errors import UserError
from robust_run.json_output import print_document
from robust_run.launcher.operator.commands.about_run import complete_run
from robust_run.orchestrator.people.operator import ask, find_run, look
from robust_run.orchestrator.people.views.whole import lacks_room, lines_of
from robust_run.roles.view_words import RolesView
from robust_run.roles.words import AskCall
from robust_run.terminal import plain

SHOW = "show"


class _Roles(click.Group):
    """`robust roles RUN` is short for `robust roles show RUN`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not any(each in ("-h", "--help") for each in args[:1]) and (not args or args[0] not in self.commands):
            args = [SHOW, *args]
        return super().parse_args(context, args)


def _about_a_run(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--json", "as_json", is_flag=True, help="As JSON.")(command)
    return click.option("--log-dir", default="", metavar="FOLDER", help="Folder of the runs (default: ./robust-runs).")(
        command
    )


@click.group(cls=_Roles)
def roles() -> None:
    """Show a job of several roles (robust-run --roles), scale a role, end the job; what happened, and who waits for whom.

    robust roles RUN is short for robust roles show RUN.
    """


@roles.command(name=SHOW)
@click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run)
@click.option("--prometheus", default="", metavar="FILE.prom", help="Write figures for a textfile collector; - prints.")
@_about_a_run
def show(run: str, prometheus: str, log_dir: str, as_json: bool) -> None:
    """Say how a job of several roles is, dead or alive: members and queues. RUN is a run directory or a run's name."""
    path = find_run(run, log_dir, dict(os.environ))
    view = look(path)
    if prometheus:
        _write_figures(view, os.path.basename(os.path.normpath(path)), prometheus)
    if prometheus != "-":
        _print(view, as_json)


@roles.command()
@click.argument("run", shell_complete=complete_run)
@click.argument("role")
@click.argument("members", type=click.IntRange(min=0))
@_about_a_run
def scale(run: str, role: str, members: int, log_dir: str, as_json: bool) -> None:
    """Have ROLE run with so many MEMBERS, within its fewest and most. Fewer: the highest indices end, in good order."""
    path = find_run(run, log_dir, dict(os.environ))
    view = look(path)
    found = next((each for each in view.roles if each.name == role), None)
    if found is None:
        raise UserError(f"{view.name} has no role {role!r}; it has {', '.join(each.name for each in view.roles)}")
    if not found.fewest <= members <= found.most:
        raise UserError(
            f"{role} can have {found.fewest} to {found.most} members, not {members}; the roles file says so"
        )
    ask(path, AskCall(number=1, what="scale", role=role, members=members, by=_me()))
    view = look(path)
    if lacking := lacks_room(view, role):
        click.echo(f"robust: {plain(lacking)}", err=True)
    _print(view, as_json)


@roles.command()
@click.argument("run", shell_complete=complete_run)
@_about_a_run
def stop(run: str, log_dir: str, as_json: bool) -> None:
    """End a job of several roles as SIGTERM would."""
    path = find_run(run, log_dir, dict(os.environ))
    ask(path, AskCall(number=1, what="stop", by=_me()))
    _print(look(path), as_json)


@roles.command()
@click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run)
@_about_a_run
def top(run: str, log_dir: str, as_json: bool) -> None:
    """Watch a job of several roles on the terminal; robust top RUN is the same. Piped, it prints one screen and ends."""
    from robust_run.orchestrator.people import commands

    commands.top(run, log_dir=log_dir, as_json=as_json)


@roles.command()
@click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run)
@_about_a_run
def why(run: str, log_dir: str, as_json: bool) -> None:
    """Say who waits for whom across roles, to the line of code at which the last one is; robust why RUN is the same."""
    from robust_run.orchestrator.people import commands

    commands.why(run, log_dir=log_dir, as_json=as_json)


@roles.command()
@click.argument("number", default="", metavar="[N]")
@click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run)
@click.option(
    "--all", is_flag=True, hidden=True, expose_value=False
)  # as robust incident has it: all are listed anyway
@_about_a_run
def incident(number: str, run: str, log_dir: str, as_json: bool) -> int:
    """List incidents and losses of all members by time; show incident N of the list. robust incident RUN is the same."""
    from robust_run.orchestrator.people import commands

    return commands.incident(number, run, log_dir=log_dir, as_json=as_json)


@roles.command()
@click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run)
@_about_a_run
def events(run: str, log_dir: str, as_json: bool) -> None:
    """Tell what happened to a job of several roles; robust events RUN is the same."""
    from robust_run.orchestrator.people import commands

    commands.events(run, log_dir=log_dir, as_json=as_json)


@roles.command()
@click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run)
@click.option("--html", default="", metavar="FILE", help="Write the page to this file, too.")
@_about_a_run
def report(run: str, html: str, log_dir: str, as_json: bool) -> None:
    """Write the page of a job of several roles, and those of its members; robust report RUN is the same."""
    from robust_run.orchestrator.people import commands

    commands.report(run, log_dir=log_dir, html=html, as_json=as_json)


def _write_figures(view: RolesView, run: str, path: str) -> None:
    """Write them in one step: a collector reads all of them or those before. Raises UserError."""
    from robust_run.atomic_file import write_file
    from robust_run.orchestrator.people.views.gauges import families
    from robust_run.report.metrics import exposition

    data = exposition(families(view, run))[0]
    if path == "-":
        click.echo(data.decode(), nl=False)
        return
    if not path.endswith(".prom"):
        raise UserError(f"--prometheus {path!r}: a textfile collector reads names that end in .prom; give it one, or -")
    try:
        write_file(path, data)
    except OSError as error:
        raise UserError(f"--prometheus {path!r}: {error.strerror}; name a file that can be written") from error


def _print(view: RolesView, as_json: bool) -> None:
    if as_json:
        print_document(view)
        return
    for line in lines_of(view):
        click.echo(plain(line))


def _me() -> str:
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
