"""Attempt history of a job, from its journal: when each was ordered, ran, made its first step, ended. Pure.

Fed with the entries of a journal in order, as they come: a live page feeds it what was appended since.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.check_events import Diagnosed
from robust_run.launcher.model.code_events import NotFinite
from robust_run.launcher.records.folds.attempts import AttemptCourse
from robust_run.launcher.records.journal import JournalEntry, Terms
from robust_run.report.pages.types import AttemptTimes, NodePlace, ReportedCheckpoint

#: The core decides at once: an order at the same moment as an event follows from it.
_SAME_MOMENT_S = 1e-6


class _Draft(msgspec.Struct):
    """An attempt while it goes on, and what only pages tell of it."""

    course: AttemptCourse
    places: tuple[NodePlace, ...]
    code: int
    verdict_s: float | None = None
    evicted_s: float | None = None
    checked_s: float | None = None

    def times(self) -> AttemptTimes:
        """Return it as pages show it."""
        course = self.course
        words = {"promote": "promoted", "fork": "forked", "spawn": "spawned"}
        how = [f"{course.rungs[rung]} {word}" for rung, word in words.items() if rung in course.rungs]
        made_s = course.resumed_s
        return AttemptTimes(
            number=course.number,
            places=self.places,
            world_size=course.ranks,
            ordered_s=course.began_s,
            started_s=course.started_s,
            first_step_s=course.first_step_s,
            verdict_s=self.verdict_s,
            evicted_s=self.evicted_s,
            onset_s=course.onset_s,
            told_s=course.told_s,
            ended_s=course.ended_s,
            anew_s=course.anew_s,
            resumed=ReportedCheckpoint(created_s=made_s, step=course.resumed_step) if made_s is not None else None,
            checked_s=self.checked_s,
            steps=course.steps,
            code=self.code,
            standstills=course.standstills,
            how=", ".join(how) if course.started_s is not None else "",
        )


class AttemptHistory:
    """All attempts of a job."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Draft] = {}
        self._newest: _Draft | None = None
        self._open: list[_Draft] = []
        """Those that may not be over."""
        self._names: dict[str, str] = {}
        self._terms = Terms()
        self._shown: tuple[AttemptTimes, ...] | None = None
        """The attempts, until the next entry."""
        self._cause_mono_s = self._cause_s = -1.0
        """The newest event that says who is at fault."""
        self._evicted_s: float | None = None
        self.incidents = 0
        """How many were put on record."""
        self.begun_s: float | None = None
        self.last_s: float | None = None
        self.finished_s: float | None = None
        self.outcome = ""
        """Of a job that is over."""
        self._restart = 0
        """How often a scheduler had started it again."""

    @property
    def attempts(self) -> tuple[AttemptTimes, ...]:
        """Return the attempts so far, in order."""
        if self._shown is None:
            self._shown = tuple(self._attempts[number].times() for number in sorted(self._attempts))
        return self._shown

    @property
    def has_stepped(self) -> bool:
        """Whether any attempt made a step."""
        return any(each.course.first_step_s is not None for each in self._attempts.values())

    def attempt(self, number: int) -> AttemptTimes | None:
        """Return one attempt, None if it never started."""
        draft = self._attempts.get(number)
        return draft.times() if draft is not None else None

    def take(self, entry: JournalEntry) -> None:
        """Take in the next entry. What a controller wrote that had been replaced is left out."""
        if not self._terms.hold(entry.term):
            return
        self._shown = None
        self.begun_s = entry.at if self.begun_s is None else self.begun_s
        self.last_s = entry.at
        if entry.event is not None:
            self._event(entry, entry.event)
        elif entry.action is not None:
            self._action(entry, entry.action)

    def _event(self, entry: JournalEntry, event: e.Event) -> None:
        match event:
            case n.NodeJoined(node=info):
                self._names[info.id] = info.name
            case n.NodeReturned(node=node, name=name) if name:
                self._names[node] = name
            case n.JobStarted(restart=restart) | n.ControllerResumed(restart=restart) if restart > self._restart:
                self._restart, self.finished_s, self.outcome = restart, None, ""
            case e.AttemptStarted(attempt=attempt) if attempt in self._attempts:
                resumes = (event.resumes_s, event.resumes_step)
                self._attempts[attempt].course.start(event.node, event.how, resumes, entry.at)
            case e.FirstStep(attempt=attempt, at_s=at_s) if attempt in self._attempts:
                self._attempts[attempt].course.step(min(at_s + entry.at - entry.mono, entry.at))
            case e.AttemptEnded(attempt=attempt) if attempt in self._attempts:
                self._attempts[attempt].course.end_on_node(event.progress.steps, entry.at)
            case n.NodeLost() | n.NodeEvicted():
                self._blame(entry)
                self._evicted_s = entry.at
            case Diagnosed(attempt=attempt) if attempt in self._attempts:
                self._attempts[attempt].checked_s = entry.at
            case e.Inquired() | NotFinite():
                self._blame(entry)
                self._evicted_s = None

    def _action(self, entry: JournalEntry, action: a.Action) -> None:
        self.incidents += isinstance(action, a.RecordIncident)
        match action:
            case a.StartAttempt(attempt=attempt) if (
                attempt not in self._attempts and len(action.placements) == action.nodes
            ):
                self._ordered(action, entry.at)
            case a.EndAttempt(attempt=attempt) if attempt in self._attempts and not action.only:
                self._told_to_end(self._attempts[attempt], entry)
            case a.RecordIncident(attempt=attempt, action=done) if attempt in self._attempts and done != "report":
                onset_s = min(action.onset_at_s + entry.at - entry.mono, entry.at)
                self._attempts[attempt].course.fail(onset_s, action.verdict.sentence, entry.at)
            case a.RecordIncident(attempt=attempt, stands_still=True) if attempt in self._attempts:
                onset_s = min(action.onset_at_s + entry.at - entry.mono, entry.at)
                self._attempts[attempt].course.stand(onset_s, self.incidents)
            case a.StandstillOver(attempt=attempt, at_s=at_s) if attempt in self._attempts:
                self._attempts[attempt].course.go_on(min(at_s + entry.at - entry.mono, entry.at), entry.at)
            case a.Finish(outcome=outcome):
                self.finished_s, self.outcome = entry.at, outcome
                self._over(entry.at)

    def _blame(self, entry: JournalEntry) -> None:
        self._cause_mono_s, self._cause_s = entry.mono, entry.at

    def _ordered(self, order: a.StartAttempt, at_s: float) -> None:
        self._over(at_s)
        places = tuple(
            NodePlace(node=self._names.get(each.node, each.node), first_rank=each.first_rank, nproc=each.nproc)
            for each in order.placements
        )
        if self._newest is not None and self._newest.places == places:
            places = self._newest.places  # one copy of what may be 10,000 nodes
        draft = self._attempts[order.attempt] = self._newest = _Draft(
            course=AttemptCourse(
                number=order.attempt,
                began_s=at_s,
                ranks=order.world_size,
                nodes=order.nodes,
                anew_s=self.begun_s if order.resume is not None and order.resume.is_beginning else None,
            ),
            places=places,
            code=order.code.number if order.code is not None else 0,
        )
        self._open.append(draft)

    def _told_to_end(self, draft: _Draft, entry: JournalEntry) -> None:
        draft.course.end(entry.at)
        if draft.verdict_s is None and abs(entry.mono - self._cause_mono_s) <= _SAME_MOMENT_S:
            draft.verdict_s, draft.evicted_s = self._cause_s, self._evicted_s

    def _over(self, at_s: float) -> None:
        for draft in self._open:
            draft.course.over(at_s)
        self._open.clear()
