"""Data of pages, from what a controller or a dead job's directory knows. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.core.state import JobState
from robust_run.launcher.operator.views.history import AttemptHistory
from robust_run.report.effective import counts_steps
from robust_run.report.pages.course import lost_of
from robust_run.report.pages.ettr import spans_of, stretches_of
from robust_run.report.pages.types import (
    CodeRow,
    Drawn,
    EvictedHost,
    Happened,
    IncidentCost,
    IncidentPage,
    JobPage,
    ReportedCheckpoint,
)
from robust_run.report.types import Incident
from robust_run.tracer.types import Scene

#: Returns the newest of the checkpoints that are known and are older than this moment, seconds since the epoch.
Kept = Callable[[float], "ReportedCheckpoint | None"]


def nothing_kept(_: float) -> ReportedCheckpoint | None:
    """Return that no checkpoint is known."""
    return None


def incident_page(
    facts: JobFacts,
    history: AttemptHistory,
    incidents: Sequence[Incident],
    number: int,
    scene: Scene | None,
    drawn: Drawn,
    *,
    kept: Kept = nothing_kept,
    files: tuple[str, ...] = (),
) -> IncidentPage:
    """Return what the page of incident `number` (from 1; one of `incidents`, which are in their order) shows.

    `files`: those of its evidence that are there.
    """
    incident = next(each for each in incidents if each.id == number)
    until_s = drawn.at_s if drawn.is_live or history.last_s is None else history.last_s
    counts = _counts(history, incidents, until_s)
    return IncidentPage(
        run_id=facts.run_id,
        run=facts.run_directory or facts.run_id,
        script=facts.script,
        incident=incident,
        incidents=incidents[-1].id,
        scene=scene,
        attempt=history.attempt(incident.attempt),
        following=history.attempt(incident.attempt + 1) if incident.action.name not in ("report", "stop") else None,
        lost=_lost(history, incident, drawn.at_s, kept, is_live=drawn.is_live, counts=counts),
        files=files,
        drawn=drawn,
    )


def _counts(history: AttemptHistory, incidents: Sequence[Incident], until_s: float, outcome: str = "") -> bool:
    if history.has_stepped:  # of ten thousand attempts none has to be put together for it
        return True
    return counts_steps(stretches_of(history.attempts, incidents), outcome or history.outcome, until_s)


def _lost(
    history: AttemptHistory, incident: Incident, now_s: float, kept: Kept, *, is_live: bool, counts: bool
) -> IncidentCost:
    """`counts`: whether the program's steps are counted; else it trains again when its workers are up."""
    struck, following = history.attempt(incident.attempt), history.attempt(incident.attempt + 1)
    known = following.resumed if following is not None else None  # the folder may have been tidied up since
    checkpoint = known or kept(incident.onset_s)
    if not counts and following is not None and following.started_s is not None:
        return lost_of(incident, struck, checkpoint, following.started_s, is_final=True)
    is_final = history.finished_s is not None or not is_live
    until_s = history.finished_s if history.finished_s is not None else history.last_s if is_final else now_s
    return lost_of(incident, struck, checkpoint, until_s or now_s, is_final=is_final)


def job_page(
    facts: JobFacts,
    state: JobState,
    history: AttemptHistory,
    incidents: Sequence[Incident],
    drawn: Drawn,
    *,
    kept: Kept = nothing_kept,
) -> JobPage:
    """Return what the page of a job shows. What is drawn from other files (heat-map, start-up) is added by the caller."""
    finish = state.finish
    ended_s = history.finished_s if finish is not None else None
    begin_s = history.begun_s if history.begun_s is not None else facts.started_unix_s
    last_s = history.last_s if history.last_s is not None else begin_s
    until_s = ended_s if ended_s is not None else drawn.at_s if drawn.is_live else last_s
    standings = [state.standing(member) for member in state.members.values()]
    attempts = history.attempts
    counts = _counts(history, incidents, until_s, finish.outcome if finish is not None else "")
    return JobPage(
        run_id=facts.run_id,
        run=facts.run_directory or facts.run_id,
        script=facts.script,
        command=shlex.join(facts.argv),
        host=facts.host,
        version=facts.version,
        started_s=begin_s,
        drawn=drawn,
        known_s=until_s,
        ended_s=ended_s,
        phase=state.phase,
        outcome=finish.outcome if finish is not None else "",
        exit_code=finish.exit_code if finish is not None else None,
        reason=(finish.sentence or finish.reason) if finish is not None else "",
        world_size=state.world_size,
        nodes_active=sum(standing == "active" for standing in standings),
        nodes_standby=sum(standing == "standby" for standing in standings),
        attempts=attempts,
        incidents=tuple(
            Happened(incident=each, lost=_lost(history, each, until_s, kept, is_live=drawn.is_live, counts=counts))
            for each in incidents
        ),
        spans=spans_of(attempts, incidents, begin_s, until_s, counts_steps=counts),
        counts_steps=counts,
        evictions=tuple(
            EvictedHost(node=name, reason=why.reason, by=why.by, at_s=why.at_unix_s)
            for name, why in state.evicted.items()
        ),
        code=_code(state),
    )


def _code(state: JobState) -> tuple[CodeRow, ...]:
    return tuple(
        CodeRow(
            number=record.version.number,
            fate=record.fate,
            why=record.why,
            by=record.version.by,
            note=record.version.note,
            summary=record.version.summary,
            commit=record.version.commit,
            at_s=record.version.at_unix_s,
            first_attempt=record.first_attempt,
        )
        for record in state.code.records
    )
