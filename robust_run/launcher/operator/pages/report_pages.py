"""Writes pages into a run directory: `incidents/NNNN.html` and `report.html`, from what is in the directory.

robust report [RUN]     pages of a job, dead or alive
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError
from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.core.state import policy_of
from robust_run.launcher.operator.pages.page_reading import (
    JournalTail,
    checkpoints_in,
    files_in,
    scene_in,
    with_pictures,
)
from robust_run.launcher.operator.reading.dead import facts_of, read_dead
from robust_run.launcher.operator.reading.incident_reading import read_incidents
from robust_run.launcher.operator.views.accepting import accepts, accepts_unasked
from robust_run.launcher.operator.views.life import JobLife, Life
from robust_run.launcher.operator.views.page_data import Kept, incident_page, job_page
from robust_run.report.pages.job_page import job_html
from robust_run.report.pages.types import Accepts, Drawn
from robust_run.report.pages.words import incident_name
from robust_run.report.types import Incident

if TYPE_CHECKING:
    from robust_run.launcher.core.state import JobState

#: File of the job's page.
REPORT_NAME = "report.html"
#: Pages of incidents that are drawn anew when a job ends: the newest. Those before have theirs already.
MOST_AT_END = 50


class PagesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    report: str
    incidents: tuple[str, ...] = ()
    unread: str = ""
    """What could not be read of the incidents; empty: nothing."""
    life: Life = "over"
    """Whether the job lives, as far as that is known here."""
    note: str = ""
    """How that is known, or why it is not."""
    todo: str = ""
    """What to type, of a job that does not answer."""
    at_unix_s: float = 0.0
    """When the pages were drawn."""


class Pages:
    """The pages of one run directory. Methods raise PlatformError or UserError for what cannot be read or written."""

    def __init__(self, run_directory: str) -> None:
        self._folder = run_directory
        self._tail = JournalTail(os.path.join(run_directory, "journal.jsonl"))
        self._incidents: dict[int, Incident] = {}
        """As they were read last, without their evidence. One that changes is drawn anew, so that it is read again then."""

    def write_incident(self, number: int, would: Callable[[str], Accepts]) -> str:
        """Write the page of one incident of a job that goes on; return its path.

        `would` returns what its controller would do if it was asked about a host.
        """
        facts, kept = self._read()
        self._incidents.pop(number, None)
        incidents = read_incidents(self._folder, self._tail.history.incidents, known=self._incidents).incidents
        self._incidents = {each.id: _without_evidence(each) for each in incidents}
        incident = next((each for each in incidents if each.id == number), None)
        if incident is None:
            raise PlatformError(f"incident {number} of {self._folder!r} cannot be read: there are {len(incidents)}")
        drawn = Drawn(at_s=time.time(), life="running", accepts=would(_node(incident)))
        return self._incident(facts, incidents, number, drawn, kept)

    def write_ended(self, state: JobState) -> PagesWritten:
        """Write the page of a job that is over by what its controller knows, and those of its newest incidents."""
        return self._write(state, JobLife(life="over"), MOST_AT_END)

    def write_all(self, life: JobLife) -> PagesWritten:
        """Write the page of a job by its journal, and those of all its incidents. `life`: whether it lives."""
        return self._write(None, life, None)

    def _write(self, state: JobState | None, life: JobLife, most: int | None) -> PagesWritten:
        facts, kept = self._read()
        found = read_incidents(self._folder, self._tail.history.incidents)
        incidents = found.incidents
        state = read_dead(self._folder).state if state is None else state
        life = JobLife(life="over") if state.finish is not None else life  # it may have ended since it was asked
        drawn = Drawn(
            at_s=time.time(),
            life=life.life,
            note=life.note,
            command=life.command,
            where=life.where,
            accepts=accepts_unasked(state),
        )
        written = []
        would: dict[str, Accepts] = {}
        for each in incidents if most is None else incidents[-most:]:
            node = _node(each)
            if drawn.is_live and node not in would:  # thousands of nodes are gone through for each
                would[node] = accepts(facts.policy, state, node)
            now = msgspec.structs.replace(drawn, accepts=would.get(node, drawn.accepts))
            written.append(self._incident(facts, incidents, each.id, now, kept))
        page = job_page(facts, state, self._tail.history, incidents, drawn, kept=kept)
        page = with_pictures(msgspec.structs.replace(page, unread=found.words()), self._folder)
        report = _write(os.path.join(self._folder, REPORT_NAME), job_html(page))
        return PagesWritten(
            report=report,
            incidents=tuple(written),
            unread=found.words(),
            life=life.life,
            note=life.note,
            todo=life.todo,
            at_unix_s=drawn.at_s,
        )

    def _read(self) -> tuple[JobFacts, Kept]:
        path = os.path.join(self._folder, "journal.jsonl")
        try:
            history = self._tail.catch_up()
        except OSError as error:
            raise PlatformError(f"cannot read {path!r}: {error.strerror}") from error
        header = self._tail.header
        if header is None:
            raise PlatformError(
                f"{path!r} does not begin as a journal of this robust-run does; robust events may tell more"
            )
        facts = facts_of(self._folder, header, policy_of(header.job), history.begun_s or 0.0)
        return facts, checkpoints_in(header.job.ckpt_dir)

    def _incident(self, facts: JobFacts, incidents: Sequence[Incident], number: int, drawn: Drawn, kept: Kept) -> str:
        # What judges a scene is imported here: most jobs end without an incident.
        from robust_run.report.pages.incident.page import incident_html

        scene = scene_in(self._folder, number)
        files = files_in(self._folder, next(each for each in incidents if each.id == number))
        page = incident_page(facts, self._tail.history, incidents, number, scene, drawn, kept=kept, files=files)
        return _write(os.path.join(self._folder, "incidents", incident_name(number)), incident_html(page))


def _node(incident: Incident) -> str:
    """Return the host that an incident's advice is about; empty where it names none."""
    return incident.verdict.nodes[0] if incident.verdict.nodes else ""


def _without_evidence(incident: Incident) -> Incident:
    """Return what the pages of others need of an incident: there may be thousands."""
    return msgspec.structs.replace(incident, evidence=()) if incident.evidence else incident


def write_report(run_directory: str, life: JobLife) -> PagesWritten:
    """Write all pages of a run from its directory. `life`: whether it lives. Raises PlatformError or UserError."""
    return Pages(run_directory).write_all(life)


def _write(path: str, content: str) -> str:
    """Write a file as a whole, or not at all. Raises PlatformError."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        found = os.lstat(folder)
        if stat.S_ISLNK(found.st_mode) and found.st_uid != os.geteuid():
            raise PlatformError(f"cannot write {path!r}: {folder!r} is a link that user {found.st_uid} has put there")
        write_file(path, content.encode(errors="backslashreplace"))
    except OSError as error:
        raise PlatformError(f"cannot write {path!r}: {error.strerror}") from error
    return path
