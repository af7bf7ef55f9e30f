"""`robust update` and `robust code log|show|diff|rollback`. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from robust_run.clock import seconds_of
from robust_run.errors import RobustRunError, UserError
from robust_run.json_output import document
from robust_run.launcher.operator.commands.about_run import about_a_run, show_lines
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.launcher.model.code_events import CodeRecord, Ledger
    from robust_run.launcher.operator.code.remote import Versions

#: How long an update waits for a failure, unless told otherwise.
PATIENCE_S = 24 * 3600.0


def _of_a_role(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--role", default="", metavar="NAME", help="Of a job of several roles: this one.")(command)


@click.command()
@click.option("--ref", default="", metavar="COMMIT", help="Take the code of this commit, not the files in the folder.")
@click.option(
    "--dir", "folder", default="", metavar="PATH", help="Take the code in this folder (default: the job's own)."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set an argument of the script.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable of the workers.")
@click.option(
    "--when",
    default=None,
    metavar="failure|now|TIME",
    help="failure (default): at the next one, within 24 h; TIME (30m, 6h, never): the same with another limit; now: at once. "
    "Without anything new it is about what is pending.",
)
@click.option("--note", default="", metavar="TEXT", help="Reason of the update, kept in the journal.")
@click.option(
    "--check",
    default=None,
    metavar="COMMAND",
    help="Run this in the new code first; refuse the update unless it exits with 0.",
)
@click.option("--check-limit", default=300.0, show_default=True, metavar="SECONDS", help="Time limit of --check.")
@click.option("--slower", is_flag=True, help="Do not roll back if steps take longer than before.")
@click.option("--again", is_flag=True, help="Take code again that was rolled back before.")
@click.option(
    "--base",
    default=0,
    metavar="VERSION",
    help="Version that this change is based on (default: the last one from the same source).",
)
@_of_a_role
@about_a_run
def update(  # noqa: PLR0913, PLR0917 - its options
    ref: str,
    folder: str,
    settings: tuple[str, ...],
    variables: tuple[str, ...],
    when: str | None,
    note: str,
    check: str | None,
    check_limit: float,
    slower: bool,
    again: bool,
    base: int,
    as_json: bool,
    **which: str,
) -> int:
    """Give a running job new code, arguments or variables: from its next failure on, unless --when says otherwise.

    What fails in its first steps is rolled back by itself. RUN is a run directory or a run's name; without it, the one that runs.
    """

    from robust_run.launcher.operator.code.update import Maker, UpdateRequest
    from robust_run.launcher.operator.views.show import clean
    from robust_run.launcher.records.code.settings import parse_pairs

    if ref and folder and not os.path.isdir(folder):
        raise UserError(f"--dir {folder!r} is no folder")
    if check is not None and not check.strip():
        raise UserError("--check is empty; give a command, or leave it out")
    if not (math.isfinite(check_limit) and check_limit > 0):
        raise UserError(f"--check-limit {check_limit:g}: must be a number of seconds above 0")
    now, due_after_s = parse_when("failure" if when is None else when)
    request = UpdateRequest(
        ref=ref,
        folder=folder,
        settings=parse_pairs(settings, "--set"),
        env=parse_pairs(variables, "--env"),
        note=note,
        by=_user(),
        host=_host(),
        now=now,
        due_after_s=due_after_s,
        timed=when is not None,
        check=check or "",
        check_s=check_limit,
        slower=slower,
        again=again,
        base=base,
    )
    failed: RobustRunError | None = None
    for versions in _to_change(which):
        maker = Maker(versions, request, os.environ, lambda text: click.echo(f"robust: {plain(text)}", err=True))
        try:
            answer = maker.make()
        except RobustRunError as error:  # of one role: the others may have something new
            if failed is not None:
                click.echo(f"robust: {plain(str(failed))}", err=True)
            failed = error
            continue
        click.echo(document(answer) if as_json else f"robust: {clean(answer.done)}")
    if failed is not None:
        raise failed
    return 0


def parse_when(text: str) -> tuple[bool, float]:
    """Return whether now, and else after how many seconds at the latest; 0: whenever. Raises UserError."""
    word = text.strip().lower()
    if word in ("now", "failure", "never"):
        return word == "now", PATIENCE_S if word == "failure" else 0.0
    seconds = seconds_of(word)
    if not 0 < seconds <= 366 * 86400:
        raise UserError(f"--when {text!r}: must be failure, now, never, or a time like 30m, 6h, 2d")
    return False, seconds


@click.group()
def code() -> None:
    """The versions of a job's code: which ran, which runs, what became of them."""


@code.command()
@_of_a_role
@about_a_run
def log(as_json: bool, **which: str) -> int:
    """List all versions and their fate. * runs, > waits for the next attempt."""

    from robust_run.launcher.operator.code import show as words

    ledger = _versions(which).view().code
    show_lines([document(ledger)] if as_json else words.log_lines(ledger))
    return 0


@code.command()
@click.argument("version", type=int)
@_of_a_role
@about_a_run
def show(version: int, as_json: bool, **which: str) -> int:
    """Say all that is known of a version, and which files it changed."""
    import tempfile

    from robust_run.launcher.operator.code import show as words
    from robust_run.launcher.records.code.difference import changes
    from robust_run.launcher.records.code.tree_store import TreeStore

    versions = _versions(which)
    ledger = versions.view().code
    record = _record(ledger, version)
    if as_json:
        show_lines([document(record)])
        return 0
    differing = []
    parents = record.version.parents
    with tempfile.TemporaryDirectory(prefix="robust-code-") as folder:
        store = TreeStore(folder)
        if parents and record.version.tree:
            before = versions.fetch(_record(ledger, parents[0]).version.tree, store)
            differing = changes(before, versions.fetch(record.version.tree, store), store.get)
    show_lines(words.version_lines(record, ledger, differing))
    return 0


@code.command()
@click.argument("old", type=int)
@click.argument("new", type=int)
@_of_a_role
@about_a_run
def diff(old: int, new: int, as_json: bool, **which: str) -> int:
    """Show how two versions differ, as a patch."""
    import tempfile

    from robust_run.launcher.operator.views.show import clean
    from robust_run.launcher.records.code import difference
    from robust_run.launcher.records.code.tree_store import TreeStore

    versions = _versions(which)
    ledger = versions.view().code
    records = [_record(ledger, number) for number in (old, new)]
    with tempfile.TemporaryDirectory(prefix="robust-code-") as folder:
        store = TreeStore(folder)
        before, after = (versions.fetch(record.version.tree, store) for record in records)
        if as_json:
            show_lines([document(difference.changes(before, after, store.get), "changes")])
            return 0
        lines = difference.patch(before, after, store.get, (str(old), str(new)))
        for line in lines:
            click.echo(clean(line.replace("\t", "    ")))
    for option, one, other in (
        ("--set", records[0].version.settings, records[1].version.settings),
        ("--env", records[0].version.env, records[1].version.env),
    ):
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                click.echo(
                    clean(f"{option} {name}: {one.get(name, '(as started)')} -> {other.get(name, '(as started)')}")
                )
    return 0


@code.command()
@click.option("--to", default=0, metavar="VERSION", help="Version to go back to (default: the one trusted before).")
@click.option("--reason", default="", metavar="TEXT", help="Reason, kept in the journal.")
@_of_a_role
@about_a_run
def rollback(to: int, reason: str, as_json: bool, **which: str) -> int:
    """Take an update back: the attempt ends, and the next runs the version before. Only versions that were trusted."""

    from robust_run.launcher.operator.views.code_words import RollbackWish
    from robust_run.launcher.operator.views.show import clean

    for versions in _to_change(which):
        answer = versions.roll_back(RollbackWish(to=to, reason=reason, by=_user()))
        click.echo(document(answer) if as_json else f"robust: {clean(answer.done)}")
    return 0


def _of_roles(which: dict[str, str]) -> dict[str, Versions]:
    """Return the versions of the roles that are meant; empty for a job of one world, and where nobody knows of roles."""
    find = (click.get_current_context().find_object(dict) or {}).get("versions_of_roles")
    found: dict[str, Versions] = (
        {} if find is None or which["url"] else find(which["run"], which["log_dir"], which["role"])
    )
    if which["role"] and not found:
        raise UserError(f"--role {which['role']}: this is no job of several roles")
    return found


def _to_change(which: dict[str, str]) -> list[Versions]:
    from robust_run.launcher.operator.code.remote import versions_to_change

    found = _of_roles(which)
    if found:
        return list(found.values())
    return [versions_to_change(os.environ, **{name: value for name, value in which.items() if name != "role"})]


def _versions(which: dict[str, str]) -> Versions:
    from robust_run.launcher.operator.code.remote import versions_to_read

    found = _of_roles(which)
    if len(found) > 1:
        raise UserError(f"a job of several roles: say which one with --role ({', '.join(found)})")
    if found:
        return next(iter(found.values()))
    return versions_to_read(
        os.environ,
        run=which["run"],
        log_dir=which["log_dir"],
        url=which["url"],
        token_file=which["token_file"],
        tls_ca=which["tls_ca"],
    )


def _record(ledger: Ledger, number: int) -> CodeRecord:
    from robust_run.launcher.core.ledger_queries import record_of

    record = record_of(ledger, number)
    if record is None:
        raise UserError(f"there is no version {number}; robust code log lists them")
    return record


def _user() -> str:
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{_host()}"


def _host() -> str:
    import socket

    return socket.gethostname()
