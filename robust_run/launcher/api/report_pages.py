"""Writes pages into a run directory: `incidents/NNNN.html` and `report.html`, from what is in the directory alone.

robust report [RUN]     pages of a job, dead or alive
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher import core
from robust_run.launcher.api.dead import facts_of
from robust_run.launcher.api.handle import JobFacts
from robust_run.launcher.api.incident_reading import read_incidents
from robust_run.launcher.api.page_data import Kept, incident_page, job_page
from robust_run.launcher.api.page_reading import (
    JournalTail,
    checkpoints_in,
    scene_in,
    with_pictures,
)
from robust_run.launcher.journal import events_of, in_force, read
from robust_run.launcher.outcome import left
from robust_run.launcher.policy import policy_of
from robust_run.report.pages.incident_page import incident_html, incident_name
from robust_run.report.pages.job_page import job_html
from robust_run.report.types import Incident

if TYPE_CHECKING:
    from robust_run.launcher.core.state import JobState

#: File of the job's page.
REPORT_NAME = "report.html"
#: Pages of incidents that are drawn anew when a job ends: the newest. Those before have theirs already.
MOST_AT_END = 50


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    report: str
    incidents: tuple[str, ...] = ()
    unread: str = ""
    """What could not be read of the incidents; empty: nothing."""


class Pages:
    """The pages of one run directory. Methods raise PlatformError or UserError for what cannot be read or written."""

    def __init__(self, run_directory: str) -> None:
        self._folder = run_directory
        self._tail = JournalTail(os.path.join(run_directory, "journal.jsonl"))

    def write_incident(self, number: int) -> str:
        """Write the page of one incident of a job that goes on; return its path."""
        facts, kept = self._read()
        incidents = read_incidents(self._folder, self._tail.history.incidents).incidents
        if not any(each.id == number for each in incidents):
            raise PlatformError(f"incident {number} of {self._folder!r} cannot be read: there are {len(incidents)}")
        return self._incident(facts, incidents, number, kept, is_live=True)

    def write_all(self, state: JobState | None = None) -> Written:
        """Write the job's page and those of its incidents.

        `state`: what the controller knows; without it the journal is replayed, and all incidents are drawn.
        """
        facts, kept = self._read()
        found = read_incidents(self._folder, self._tail.history.incidents)
        incidents = found.incidents
        chosen = incidents if state is None else incidents[-MOST_AT_END:]
        state = self._replayed() if state is None else state
        over = state.finish is not None
        written = tuple(self._incident(facts, incidents, each.id, kept, is_live=not over) for each in chosen)
        note = "" if over else "its controller ended without a word; robust-run --resume would go on from its journal"
        page = job_page(facts, state, self._tail.history, incidents, time.time(), kept=kept, is_live=False, note=note)
        page = with_pictures(msgspec.structs.replace(page, unread=found.words()), self._folder)
        report = _write(os.path.join(self._folder, REPORT_NAME), job_html(page))
        return Written(report=report, incidents=written, unread=found.words())

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

    def _replayed(self) -> JobState:
        header, entries = read(os.path.join(self._folder, "journal.jsonl"))
        state = core.replay(policy_of(header.job), events_of(in_force(entries)))
        if state.finish is None and (known := left(self._folder)) is not None:
            state.finish = known[0]
        return state

    def _incident(
        self, facts: JobFacts, incidents: Sequence[Incident], number: int, kept: Kept, *, is_live: bool
    ) -> str:
        scene = scene_in(self._folder, number)
        page = incident_page(
            facts, self._tail.history, incidents, number, scene, time.time(), kept=kept, is_live=is_live
        )
        return _write(os.path.join(self._folder, "incidents", incident_name(number)), incident_html(page))


def write_report(run_directory: str) -> Written:
    """Write all pages of a run from its directory alone. Raises PlatformError or UserError."""
    return Pages(run_directory).write_all()


def _write(path: str, content: str) -> str:
    """Write a file as a whole, or not at all. Raises PlatformError."""
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(draft, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        raise PlatformError(f"cannot write {path!r}: {error.strerror}") from error
    return path
