"""Writes the page of a job of several roles into its run directory, and pages of members into theirs."""

from __future__ import annotations

import os
import shlex
import time

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.operator.pages.report_pages import REPORT_NAME, write_report
from robust_run.launcher.operator.reading.incident_reading import read_incidents
from robust_run.launcher.operator.reading.runs import is_run
from robust_run.launcher.operator.reading.which import subject
from robust_run.launcher.operator.views.life import JobLife
from robust_run.orchestrator.course import files
from robust_run.orchestrator.model.command import parsed
from robust_run.orchestrator.model.state import UP
from robust_run.orchestrator.people.asking import HistoryReader, not_here
from robust_run.orchestrator.people.operator import by_journal, look
from robust_run.orchestrator.people.views.history import History
from robust_run.orchestrator.people.views.page import MOST_LOSSES, RolesPage, roles_html
from robust_run.report.pages.words import clock_time, incident_name
from robust_run.roles.view_words import RolesView

#: Pages of members that are drawn: the newest starts first.
MOST_DRAWN = 64


class RolesPagesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    report: str
    members: tuple[str, ...] = ()
    """Pages of members, the newest start first."""
    elsewhere: tuple[str, ...] = ()
    """Members whose run directories are on other nodes."""
    unwritten: tuple[str, ...] = ()
    """Why pages of members could not be written, a clause for each."""
    note: str = ""
    """Of a job that is not over: of when the page is."""
    at_unix_s: float = 0.0


def write_pages(run: str) -> RolesPagesWritten:
    """Write all pages of a job from its run directory. Raises PlatformError."""
    view, at_s = look(run), time.time()
    history = HistoryReader(run).history(at_s if view.is_led else None)
    drawn, unwritten = _of_members(run, view, history)
    report = _write(run, view, history, at_s)
    return RolesPagesWritten(
        report=report,
        members=drawn,
        elsewhere=tuple(f"{member.name} ({', '.join(member.nodes)})" for member in not_here(run, view)),
        unwritten=unwritten,
        note=_note(view, at_s),
        at_unix_s=at_s,
    )


def write_ended(run: str) -> str:
    """Write the page of a job that is over, and return its path: its members have theirs already. Empty: it never began, or has
    no end on record. Raises PlatformError.
    """
    view = by_journal(run)
    return _write(run, view, HistoryReader(run).history(None), time.time()) if view.phase == "over" else ""


def _write(run: str, view: RolesView, history: History, at_s: float) -> str:
    names = [name for member in history.members for name in member.runs]
    pages = {name: f"members/{name}/{REPORT_NAME}" for name in names}
    page = RolesPage(
        run=os.path.basename(os.path.normpath(run)),
        view=view,
        history=history,
        points=files.read(run).points,
        pages={name: where for name, where in pages.items() if os.path.isfile(os.path.join(run, where))},
        incidents={loss.run: _incidents(run, loss.run) for loss in history.losses[-MOST_LOSSES:]},
        at_s=at_s,
        again=f"robust report {shlex.quote(os.path.abspath(run))}",
    )
    path = os.path.join(run, REPORT_NAME)
    try:
        write_file(path, roles_html(page).encode(errors="backslashreplace"))
    except OSError as error:
        raise PlatformError(f"cannot write {path!r}: {error.strerror}; is it a folder of yours?") from error
    return path


def _note(view: RolesView, at_s: float) -> str:
    if view.phase == "over":
        return ""
    if not view.is_led:
        return "nobody leads the job: this is what its journal says"
    return f"the job runs: this is how it was at {clock_time(at_s)}; robust top shows it live"


def _of_members(run: str, view: RolesView, history: History) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Draw members' pages; return where they are, and what went wrong."""
    newest = {member.runs[-1] for member in history.members if member.runs}
    ended = {member.run for role in view.roles for member in role.members if member.state not in UP}
    names = [name for member in history.members for name in member.runs]
    drawn, unwritten = [], []
    for name in sorted(names, key=lambda name: (name in newest, parsed(name)[1]), reverse=True)[:MOST_DRAWN]:
        path = os.path.join(run, "members", name)
        if not is_run(path):
            continue
        is_up = name in newest and view.phase != "over" and f"members/{name}" not in ended
        try:
            drawn.append(write_report(path, _life(path) if is_up else JobLife(life="over")).report)
        except RobustRunError as error:
            unwritten.append(f"members/{name}: {error}")
    return tuple(drawn), tuple(unwritten)


def _life(path: str) -> JobLife:
    """Return whether a member lives. Nothing is advised: its job starts it again, and nobody else should."""
    try:
        life = subject(os.environ, run=path, log_dir="", url="", token_file="", tls_ca="").life()
    except RobustRunError as error:
        return JobLife(life="unknown", note=str(error))
    return msgspec.structs.replace(life, command="", where="")


def _incidents(run: str, name: str) -> tuple[tuple[float, str], ...]:
    """Return when incidents of a member began, and where their pages are, of those that have one."""
    found = []
    for each in read_incidents(os.path.join(run, "members", name)).incidents:
        where = f"members/{name}/incidents/{incident_name(each.id)}"
        if os.path.isfile(os.path.join(run, where)):
            found.append((each.onset_s, where))
    return tuple(found)
