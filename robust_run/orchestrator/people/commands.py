"""What `robust top | why | incident | events | report` do with a job of several roles. Bodies import what they need."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from robust_run.errors import UserError
from robust_run.json_output import print_document
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.orchestrator.people.asking import MemberIncident
    from robust_run.orchestrator.people.views.history import Loss, RolesNow

#: A loss is told by the incident that its launcher has made of it within so long.
NOTICED_S = 60.0


def _run(run: str, log_dir: str) -> str:
    from robust_run.orchestrator.people.operator import find_run

    return find_run(run, log_dir, dict(os.environ))


def top(run: str, *, log_dir: str, as_json: bool) -> None:
    """Watch a job on the terminal; piped, print one screen. Raises UserError, PlatformError."""
    from robust_run.launcher.operator.commands.top_command import is_for_keys, print_once, terminal
    from robust_run.orchestrator.people import asking

    path = _run(run, log_dir)
    reader = asking.HistoryReader(path)
    if as_json:
        print_document(asking.live(path, reader))
        return
    from robust_run.orchestrator.people.views import screen

    if not is_for_keys(os.environ):
        now = asking.live(path, reader)
        print_once(lambda width: screen.plain(now, width), os.environ)
        return
    from robust_run.launcher.operator.commands.top_loop import Shown, watch

    shown: Shown[RolesNow] = Shown(
        draw=screen.screen,
        rows=lambda now, _, width, height, trouble: screen.rows_of(now, width, height, trouble),
        total=screen.total_of,
    )
    watch(lambda _, __: asking.live(path, reader), terminal(os.environ), sys.stdin.fileno(), shown)


def why(run: str, *, log_dir: str, as_json: bool) -> None:
    """Say who waits for whom across roles, to the line of code. Raises UserError, PlatformError."""
    from robust_run.orchestrator.people import asking
    from robust_run.orchestrator.people.operator import look
    from robust_run.orchestrator.people.views import chain_words
    from robust_run.orchestrator.people.views.whole import headline

    path = _run(run, log_dir)
    view = look(path)
    if not view.is_led:
        _why_it_is_so(path, headline(view), is_over=view.phase == "over", as_json=as_json)
        return
    made = asking.whole_chains(path, view, os.environ)
    if as_json:
        print_document(made, "chains")
        return
    for line in chain_words.lines_of(view, made, os.path.relpath(path)):
        click.echo(line)


def _why_it_is_so(path: str, said: str, *, is_over: bool, as_json: bool) -> None:
    """Tell of a job that nobody leads what was lost last."""
    from robust_run.orchestrator.people import asking

    losses = asking.HistoryReader(path).history(None).losses
    if as_json:
        print_document({"chains": [], "losses": losses})
        return
    click.echo(plain(said))
    for loss in losses[-3:]:
        click.echo(plain(f"lost: {loss.member} at {_clock(loss.at_s)}: {loss.sentence}"))
    where = os.path.relpath(path)
    if not is_over:
        click.echo(
            "who waits at queues is not known without the leader; robust why RUN of a member, below, may still say more:"
        )
        for member in asking.HistoryReader(path).history(None).members[:8]:
            click.echo(plain(f"  robust why {where}/members/{member.runs[-1]}") if member.runs else "")
    elif losses:
        click.echo(plain(f"robust incident {where} tells all"))


def incident(number: str, run: str, *, log_dir: str, as_json: bool) -> int:
    """List the incidents of all members by time, or show one. Raises UserError, PlatformError."""
    from robust_run.orchestrator.people import asking
    from robust_run.orchestrator.people.operator import look

    if number and not number.isdecimal() and not run:
        number, run = "", number  # only a run was named
    path = _run(run, log_dir)
    view = look(path)
    history = asking.HistoryReader(path).history(None)
    found, unread = asking.incidents_of(path, history)
    if number:
        return _one_incident(path, number, found, as_json=as_json)
    others = [loss for loss in history.losses if not any(_is_of(loss, each) for each in found)]
    if as_json:
        print_document({"incidents": found, "losses": others})
        return 0
    rows = [(each.incident.detected_s, _row(each, _loss_of(each, history.losses))) for each in found]
    rows += [(loss.at_s, _loss_row(loss)) for loss in others]
    for _, row in sorted(rows, key=lambda row: row[0]):
        click.echo(plain(row))
    for words in unread:
        click.echo(f"robust: {plain(words)}", err=True)
    for member in asking.not_here(path, view):
        click.echo(f"robust: {plain(f'{member.name} is on {member.nodes[0]}: its incidents are there')}", err=True)
    if not rows:
        click.echo(f"robust: {'no incident so far' if view.phase != 'over' else 'there was no incident'}", err=True)
        return 1
    if found:
        click.echo(plain(f"robust incident {found[-1].number} {os.path.relpath(path)} shows the newest in full"))
    return 0


def _one_incident(path: str, number: str, found: tuple[MemberIncident, ...], *, as_json: bool) -> int:
    from robust_run.launcher.operator.commands.trace_show import incident_lines
    from robust_run.launcher.operator.pages.page_reading import scene_in

    chosen = next((each for each in found if number.isdecimal() and str(each.number) == number.lstrip("0")), None)
    if chosen is None:
        there = f"there are {found[0].number} to {found[-1].number}" if found else "there was none"
        raise UserError(f"there is no incident {number!r} in this job: {there}")
    if as_json:
        print_document(chosen)
        return 0
    click.echo(plain(f"{chosen.member} ({chosen.run}), incident {chosen.number} of the job"))
    for line in incident_lines(chosen.incident, scene_in(os.path.join(path, chosen.run), chosen.incident.id)):
        click.echo(line)
    return 0


def _is_of(loss: Loss, each: MemberIncident) -> bool:
    is_same_run = each.run == f"members/{loss.run}"
    return is_same_run and abs(each.incident.detected_s - loss.at_s) <= NOTICED_S


def _loss_of(each: MemberIncident, losses: Sequence[Loss]) -> Loss | None:
    near = [loss for loss in losses if _is_of(loss, each) and each.incident.action.name != "report"]
    return min(near, key=lambda loss: abs(each.incident.onset_s - loss.at_s), default=None)


def _row(each: MemberIncident, loss: Loss | None) -> str:
    incident = each.incident
    took = _back(loss) if loss is not None else ""
    return (
        f"{each.number:4d}  {_clock(incident.detected_s)}  {each.member}  {incident.verdict.sentence};"
        f" {incident.action.name}{took}"
    )


def _back(loss: Loss) -> str:
    return f", back after {loss.back_s - loss.at_s:.1f} s" if loss.back_s is not None else ", not back"


def _loss_row(loss: Loss) -> str:
    return f"   -  {_clock(loss.at_s)}  {loss.member}  {loss.sentence}{_back(loss)}"


def _clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def events(run: str, *, log_dir: str, as_json: bool) -> None:
    """Tell what happened to a job. Raises UserError, PlatformError."""
    from robust_run.orchestrator.people import asking

    moments = asking.HistoryReader(_run(run, log_dir)).history(None).moments
    if as_json:
        print_document(moments, "events")
        return
    for each in moments:
        click.echo(f"{_clock(each.at_s)}  {plain(each.text)}")


def report(run: str, *, log_dir: str, html: str, as_json: bool) -> None:
    """Write the page of a job, and those of its members. Raises UserError, PlatformError."""
    from robust_run.launcher.operator.commands.report_page_commands import copy
    from robust_run.orchestrator.people.pages import write_pages

    written = write_pages(_run(run, log_dir))
    if html:
        copy(written.report, html)
    if as_json:
        print_document(written)
        return
    several = f", and {len(written.members)} of its members" if written.members else ""
    click.echo(f"robust: {plain(os.path.relpath(written.report))}{several}")
    for words in _notes(written.note, written.elsewhere, written.unwritten):
        click.echo(f"robust: {plain(words)}")


def _notes(note: str, elsewhere: tuple[str, ...], unwritten: tuple[str, ...]) -> Iterator[str]:
    if note:
        yield note
    if elsewhere:
        yield f"on other nodes, robust report there writes their pages: {', '.join(elsewhere[:8])}"
    yield from unwritten[:8]
