"""`robust check`: stop-time diagnostics by hand. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from robust_run.errors import PlatformError, RobustRunError
from robust_run.json_output import document, print_document
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.health.checks.fleet import CheckFleet
    from robust_run.health.checks.plan import CheckRound, Wish
    from robust_run.health.checks.show import ChecksReport
    from robust_run.health.checks.types import Said


@click.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Check this node of a job; may be repeated.")
@click.option("--all", "everyone", is_flag=True, help="Check all nodes of a job, and compare them.")
@click.option("--only", metavar="CHECK,...", help="Only these checks.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=3.0,
    show_default=True,
    help="Seconds that each check measures.",
)
@click.option(
    "--passes", type=click.IntRange(1, 1_000_000), default=3, show_default=True, help="Least passes of each check."
)
@click.option(
    "--limit", type=click.FloatRange(1, 86400), default=60.0, show_default=True, help="Seconds until a check is killed."
)
@click.option(
    "--folder", default="", metavar="DIR", help="Folder for the check of the disk (default: that for temporary files)."
)
@click.option("--history", metavar="FILE", help="File of earlier measurements; `none`: neither read nor written.")
@click.option("--list", "only_list", is_flag=True, help="Print what would be done.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def check(context: click.Context, /, run: str, nodes: tuple[str, ...], everyone: bool, **typed: Any) -> int:
    """Test this node, or nodes of a job that stands still: exit code 1 if anything was found or could not be checked.

    Not beside training: checks use all of a node, and what trains there makes them slow.
    """
    import os

    from robust_run.errors import UserError

    if run and not (nodes or everyone):
        raise UserError(f"robust check {run}: say which nodes of the run: --node NAME or --all")
    if typed["only_list"] and (nodes or everyone):
        raise UserError("--list is about this node; leave --node and --all out")
    if nodes and everyone:
        raise UserError("--node and --all: give one of them")
    wish = _wish(typed)
    remote = (context.find_object(dict) or {}).get("check_nodes") if nodes or everyone else None
    if remote is not None:
        return _of_a_job(remote(run, nodes, wish, _say), typed)
    if nodes or everyone:
        raise UserError("checks of a job's nodes cannot be started from here; type robust check on the node itself")
    fleet = _here(os.environ, wish.folder)
    if typed["only_list"]:
        return _list(fleet, wish, as_json=typed["as_json"])
    _warn_if_busy()
    return _run(fleet, wish, os.environ, typed["history"], as_json=typed["as_json"])


def _wish(typed: dict[str, Any]) -> Wish:
    import math
    import os

    from robust_run.errors import UserError
    from robust_run.health.checks.plan import Wish, parse_only

    folder = os.path.abspath(typed["folder"]) if typed["folder"] else ""
    if folder and not os.path.isdir(folder):
        raise UserError(f"--folder {typed['folder']!r} is no folder")
    if not math.isfinite(typed["seconds"]) or not math.isfinite(typed["limit"]):
        raise UserError("--seconds and --limit must be numbers of seconds")
    return Wish(
        only=parse_only(typed["only"]) if typed["only"] is not None else (),
        seconds=typed["seconds"],
        passes=typed["passes"],
        limit_s=typed["limit"],
        folder=folder,
    )


def _here(env: Any, folder: str) -> CheckFleet:
    import socket

    from robust_run.health.diagnostics.here import LocalFleet, facts_here

    return LocalFleet([facts_here(socket.gethostname(), env, folder=folder)], env)


def _warn_if_busy() -> None:
    import os

    from robust_run.health.checks.busy import busy_words

    if words := busy_words(os.getloadavg()[0], os.cpu_count() or 1):
        _say(words)


def _say(line: str) -> None:
    click.echo(f"robust: {plain(line)}", err=True)


def _of_a_job(report: ChecksReport, typed: dict[str, Any]) -> int:
    """Show what came of checks that the controller of a job had carried out."""

    from robust_run.health.checks import show

    if typed["as_json"]:
        print_document(report)
    else:
        for line in show.judgement_lines(report.judgement):
            click.echo(plain(line))
    return 0 if report.judgement.is_clean else 1


def _list(fleet: CheckFleet, wish: Wish, *, as_json: bool) -> int:

    from robust_run.health.checks import show
    from robust_run.health.checks.plan import plan

    made = plan(fleet.facts(), wish)
    for line in [document(made)] if as_json else map(plain, show.plan_lines(made)):
        click.echo(line)
    return 0


def _run(fleet: CheckFleet, wish: Wish, env: Any, history: str | None, *, as_json: bool) -> int:

    from robust_run.health.checks import show
    from robust_run.health.checks.fleet import check as carry_out
    from robust_run.health.checks.history import History, learn
    from robust_run.health.diagnostics import records

    path = "" if history == "none" else history or records.default_path(env)
    past = History()
    if path:
        try:
            past = records.load(path)
        except PlatformError as error:  # what is at fault with a file says nothing about the node
            _say(f"warning: {error}; rates are compared in this run only")
            path = ""
    session = carry_out(fleet, wish, history=past, watcher=_watcher())
    judged = session.judgement()
    if path:
        try:
            records.change(path, lambda found: learn(found, session.results, judged.passed))
        except RobustRunError as error:
            _say(f"warning: {error}; what was measured now is not kept")
    if as_json:
        report = show.ChecksReport(nodes=session.facts, results=tuple(session.results), judgement=judged)
        print_document(report)
    else:
        for line in show.judgement_lines(judged):
            click.echo(plain(line))
    return 0 if judged.is_clean else 1


def _watcher() -> Any:
    """Progress goes to stderr, as it happens."""
    from robust_run.health.checks import show
    from robust_run.health.checks.fleet import CheckListener
    from robust_run.health.checks.types import Ended, Finished

    class Shown(CheckListener):
        def on_round(self, made: CheckRound) -> None:
            click.echo(f"robust: checking {made.check} on {plain(show.who(made))}", err=True)

        def on_said(self, node: str, said: Said) -> None:
            if isinstance(said, Ended):
                click.echo(f"robust:   {plain(show.result_line(said.result))}", err=True)
            elif isinstance(said, Finished) and said.left:
                left = ", ".join(map(str, said.left))
                click.echo(f"robust:   {plain(node)}: processes that cannot be killed: {left}", err=True)

    return Shown()
