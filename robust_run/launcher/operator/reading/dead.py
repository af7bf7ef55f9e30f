"""Dead job, from its journal alone: what it was, how it ended, what would continue it."""

from __future__ import annotations

import os
from functools import cached_property

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.core.state import CorePolicy, JobState, policy_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.launcher.operator.reading.startup_phases import StartupPhases
from robust_run.launcher.operator.views.course import Course
from robust_run.launcher.operator.views.course_reader import CourseReader
from robust_run.launcher.operator.views.life import JobLife
from robust_run.launcher.operator.views.live import with_course
from robust_run.launcher.operator.views.status import job_view, node_views
from robust_run.launcher.operator.views.status_types import IncidentView, JobView, NodesView
from robust_run.launcher.records.journal import JournalEntry, JournalHeader, in_force
from robust_run.launcher.records.journal_reading import read
from robust_run.launcher.records.outcome import left


class DeadJob:
    """What a journal says."""

    def __init__(
        self, run_directory: str, header: JournalHeader, entries: list[JournalEntry], policy: CorePolicy
    ) -> None:
        self._entries = entries
        self.spec = header.job
        self._facts = facts_of(run_directory, header, policy, entries[0].at if entries else 0.0)
        self.state: JobState = replay(
            policy, [(entry.event, entry.mono) for entry in entries if entry.event is not None]
        )
        self._ended_s = entries[-1].at if entries else None
        if self.state.finish is None and (known := left(run_directory)) is not None:
            self.state.finish, self._ended_s = known

    @cached_property
    def course(self) -> Course:
        """Its attempts, and how much of its time was training; nothing where its journal has gone."""
        try:
            return CourseReader(os.path.join(self._facts.run_directory, "journal.jsonl")).read_all()
        except OSError:
            return Course()

    @property
    def first_process(self) -> tuple[str, int]:
        """Host and pid of the controller that wrote the journal's first line."""
        return self._facts.host, self._facts.pid

    @property
    def _was_resumed(self) -> bool:
        """Whether a later controller went on, whose pid is on no record."""
        return any(isinstance(entry.event, ControllerResumed) for entry in self._entries)

    @property
    def last_host(self) -> str:
        """Host of the newest controller that is on record."""
        resumed = (entry.event for entry in reversed(self._entries) if isinstance(entry.event, ControllerResumed))
        return next((event.host for event in resumed if event.host), self._facts.host)

    @property
    def started_unix_s(self) -> float:
        """When its journal began; 0: it has no event yet."""
        return self._facts.started_unix_s

    def job(self, now_unix_s: float, life: JobLife) -> JobView:
        """Return its status."""
        over = self.state.finish is not None
        life = JobLife(life="over") if over else life
        job = job_view(
            self._facts,
            self.state,
            now_unix_s,
            last_incident=_last_incident(self._entries),
            alive=False,
            ended_unix_s=self._ended_s if over else None,
            note=life.note,
            resumable=life.resumable,
        )
        job = msgspec.structs.replace(job, todo=life.todo)
        if self._was_resumed:
            job = msgspec.structs.replace(job, host=self.last_host, pid=0)
        return with_course(job, self.course, starts=StartupPhases(self._facts.run_directory).totals())

    @property
    def facts(self) -> JobFacts:
        """What the job was."""
        return self._facts

    def nodes(self) -> NodesView:
        """Return its nodes as they were last known."""
        return node_views(self.state)


def facts_of(run_directory: str, header: JournalHeader, policy: CorePolicy, started_unix_s: float) -> JobFacts:
    """Return what a journal's first line says of a job."""
    return JobFacts(
        run_id=header.job.run_id,
        rdzv_id=header.job.rdzv_id,
        script=header.job.script,
        host=header.host,
        pid=header.pid,
        version=header.version,
        started_unix_s=started_unix_s,
        run_directory=run_directory,
        policy=policy,
        argv=header.job.argv,
        is_python=header.job.is_python,
        cwd=header.cwd,
        code=header.job.code,
    )


def read_dead(run_directory: str) -> DeadJob:
    """Read a run directory. Raises PlatformError or UserError if its journal cannot be read."""
    path = os.path.join(run_directory, "journal.jsonl")
    try:
        header, entries = read(path)
    except OSError as error:
        raise PlatformError(f"cannot read {path!r}: {error.strerror}") from error
    return DeadJob(run_directory, header, list(in_force(entries)), policy_of(header.job))


def _last_incident(entries: list[JournalEntry]) -> IncidentView | None:
    for entry in reversed(entries):
        match entry.action:
            case RecordIncident() as incident:
                draft = incident.verdict
                unnamed = [node for node in draft.nodes if node not in draft.sentence]
                where = f" on {', '.join(unnamed)}" if unnamed else ""
                after = f"; {draft.aftermath}" if draft.aftermath else ""
                return IncidentView(
                    attempt=incident.attempt,
                    at_unix_s=entry.at - max(entry.mono - incident.detected_at_s, 0.0),
                    kind=draft.kind,
                    sentence=f"{draft.sentence}{where}{after}",
                    action=incident.action,
                    reason=incident.reason,
                )
    return None
