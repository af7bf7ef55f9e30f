"""A job of several roles in a list of runs: `robust status --all`, `robust report FOLDER`."""

from __future__ import annotations

import os
import signal
import time

from robust_run.launcher.operator.pages.report_pages import REPORT_NAME
from robust_run.orchestrator.journal import NAME, spec_of
from robust_run.orchestrator.people.asking import HistoryReader
from robust_run.orchestrator.people.operator import by_journal, look
from robust_run.orchestrator.people.pages import write_pages
from robust_run.orchestrator.people.views.history import History
from robust_run.orchestrator.people.views.whole import headline
from robust_run.report.pages.runs_page import RunRow
from robust_run.roles.view_words import RolesView

_STOPPED = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
_STATES = {"new": ("starting", "warn"), "going": ("running", "good"), "restarting": ("restarting", "warn")}


class RunsOfRoles:
    """See `robust_run.launcher.operator.reading.several.OtherRuns`."""

    journal = NAME

    def row(self, path: str, *, may_ask: bool) -> RunRow:
        """Return the row of one job. Raises PlatformError, OSError."""
        view = look(path) if may_ask else by_journal(path)
        history = HistoryReader(path).history(time.time() if view.is_led else None)
        spec = spec_of(path)
        nproc = {role.name: role.nproc * role.nodes for role in spec.roles} if spec is not None else {}
        return row_of(path, view, history, sum(nproc.get(role.name, 1) * role.wanted for role in view.roles))

    def draw(self, path: str) -> None:
        """Write its pages. Raises PlatformError."""
        write_pages(path)


def _over(code: int) -> tuple[str, str]:
    """Return how a job has ended. What a signal ended somebody has stopped, as with jobs of one world."""
    if code in _STOPPED:
        return "stopped", "warn"
    return ("done", "calm") if code == 0 else ("failed", "bad")


def row_of(path: str, view: RolesView, history: History, ranks: int) -> RunRow:
    """Return the row of a job. A loss of workers counts as an incident."""
    state, tone = _STATES.get(view.phase, ("stopping", "warn"))
    if view.phase == "over":
        state, tone = _over(view.code)
    elif not view.is_led:
        state, tone = "not known", "warn"
    last = history.losses[-1] if history.losses else None
    nodes = {node for role in view.roles for member in role.members for node in member.nodes}
    return RunRow(
        run_id=os.path.basename(path),
        run_directory=path,
        state=state,
        tone=tone,
        headline=headline(view),
        note="" if view.phase == "over" or view.is_led else "its leader does not answer",
        script=f"{view.name}: {', '.join(f'{role.wanted} {role.name}' for role in view.roles)}",
        started_unix_s=history.begun_s or None,
        ended_unix_s=history.ended_s,
        ranks=ranks,
        nodes=max(len(nodes), 1),
        attempts_count=1,
        incidents=len(history.losses),
        verdict=f"{last.member}: {last.sentence}" if last is not None else "",
        verdict_unix_s=last.at_s if last is not None else None,
        page=f"{os.path.basename(path)}/{REPORT_NAME}" if os.path.isfile(os.path.join(path, REPORT_NAME)) else "",
    )
