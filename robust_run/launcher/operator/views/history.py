"""Attempt history of a job, from its journal: when each was ordered, ran, made its first step, ended. Pure.

Fed with the entries of a journal in order, as they come: a live page feeds it what was appended since.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model.check_events import Diagnosed
from robust_run.launcher.model.code_events import NotFinite
from robust_run.launcher.records.journal import Entry
from robust_run.report.pages.types import AttemptTimes, Checkpoint, NodePlace

#: The core decides at once: an order at the same moment as an event follows from it.
_SAME_MOMENT_S = 1e-6


class _Draft(msgspec.Struct):
    """An attempt while it goes on."""

    times: AttemptTimes
    started: set[str] = msgspec.field(default_factory=set)
    how: Counter[str] = msgspec.field(default_factory=Counter)
    last_end_s: float | None = None
    """When the last of its nodes so far was done with it."""


class History:
    """All attempts of a job."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Draft] = {}
        self._names: dict[str, str] = {}
        self._term = 0
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

    @property
    def attempts(self) -> tuple[AttemptTimes, ...]:
        """Return the attempts so far, in order."""
        return tuple(self._attempts[number].times for number in sorted(self._attempts))

    def attempt(self, number: int) -> AttemptTimes | None:
        """Return one attempt, None if it never started."""
        draft = self._attempts.get(number)
        return draft.times if draft is not None else None

    def take(self, entry: Entry) -> None:
        """Take in the next entry. What a controller wrote that had been replaced is left out."""
        if entry.term < self._term:
            return
        self._term = entry.term
        self.begun_s = entry.at if self.begun_s is None else self.begun_s
        self.last_s = entry.at
        if entry.event is not None:
            self._event(entry, entry.event)
        elif entry.action is not None:
            self._action(entry, entry.action)

    def _event(self, entry: Entry, event: e.Event) -> None:
        match event:
            case e.NodeJoined(node=info):
                self._names[info.id] = info.name
            case e.NodeReturned(node=node, name=name) if name:
                self._names[node] = name
            case e.AttemptStarted(attempt=attempt) if attempt in self._attempts:
                self._started(self._attempts[attempt], event, entry.at)
            case e.FirstStep(attempt=attempt, at_s=at_s) if attempt in self._attempts:
                self._first_step(self._attempts[attempt], min(at_s + entry.at - entry.mono, entry.at))
            case e.AttemptEnded(attempt=attempt) if attempt in self._attempts:
                self._ended(self._attempts[attempt], event, entry.at)
            case e.NodeLost() | e.NodeEvicted():
                self._blame(entry)
                self._evicted_s = entry.at
            case Diagnosed(attempt=attempt) if attempt in self._attempts:
                draft = self._attempts[attempt]
                draft.times = msgspec.structs.replace(draft.times, checked_s=entry.at)
            case e.Inquired() | NotFinite():
                self._blame(entry)
                self._evicted_s = None

    def _action(self, entry: Entry, action: a.Action) -> None:
        self.incidents += isinstance(action, a.RecordIncident)
        match action:
            case a.StartAttempt(attempt=attempt) if (
                attempt not in self._attempts and len(action.placements) == action.nodes
            ):
                self._ordered(action, entry.at)
            case a.EndAttempt(attempt=attempt) if attempt in self._attempts and not action.only:
                self._told_to_end(self._attempts[attempt], entry)
            case a.RecordIncident(attempt=attempt, action=done) if attempt in self._attempts and done != "report":
                draft = self._attempts[attempt]
                onset_s = min(action.onset_at_s + entry.at - entry.mono, entry.at)
                draft.times = msgspec.structs.replace(draft.times, onset_s=onset_s)
                self._over(draft, entry.at)
            case a.Finish(outcome=outcome):
                self.finished_s, self.outcome = entry.at, outcome
                for draft in self._attempts.values():
                    self._over(draft, entry.at)

    def _blame(self, entry: Entry) -> None:
        self._cause_mono_s, self._cause_s = entry.mono, entry.at

    def _ordered(self, order: a.StartAttempt, at_s: float) -> None:
        for draft in self._attempts.values():
            self._over(draft, at_s)
        places = tuple(
            NodePlace(node=self._names.get(each.node, each.node), first_rank=each.first_rank, nproc=each.nproc)
            for each in order.placements
        )
        times = AttemptTimes(
            number=order.attempt,
            places=places,
            world_size=order.world_size,
            ordered_s=at_s,
            code=order.code.number if order.code is not None else 0,
        )
        self._attempts[order.attempt] = _Draft(times=times)

    def _started(self, draft: _Draft, event: e.AttemptStarted, at_s: float) -> None:
        if event.node in draft.started:
            return
        draft.started.add(event.node)
        draft.how.update(event.how)
        self._resumed(draft, event)
        if len(draft.started) == len(draft.times.places):
            words = {"promote": "promoted", "fork": "forked", "spawn": "spawned"}
            how = ", ".join(f"{draft.how[rung]} {word}" for rung, word in words.items() if draft.how[rung])
            draft.times = msgspec.structs.replace(draft.times, started_s=at_s, how=how)

    def _resumed(self, draft: _Draft, event: e.AttemptStarted) -> None:
        """Nodes whose folders are their own may name different checkpoints, or none: the newest is what ranks agree on."""
        if event.resumes_s is not None and (
            draft.times.resumed is None or draft.times.resumed.created_s < event.resumes_s
        ):
            resumed = Checkpoint(created_s=event.resumes_s, step=event.resumes_step)
            draft.times = msgspec.structs.replace(draft.times, resumed=resumed)

    def _first_step(self, draft: _Draft, at_s: float) -> None:
        first_s = draft.times.first_step_s
        at_s = max(at_s, draft.times.ordered_s)
        draft.times = msgspec.structs.replace(draft.times, first_step_s=at_s if first_s is None else min(first_s, at_s))

    def _ended(self, draft: _Draft, event: e.AttemptEnded, at_s: float) -> None:
        draft.last_end_s = at_s
        steps = event.progress.steps
        if steps is not None:
            draft.times = msgspec.structs.replace(draft.times, steps=max(steps, draft.times.steps or 0))

    def _told_to_end(self, draft: _Draft, entry: Entry) -> None:
        if draft.times.told_s is None:
            draft.times = msgspec.structs.replace(draft.times, told_s=entry.at)
        if draft.times.verdict_s is None and abs(entry.mono - self._cause_mono_s) <= _SAME_MOMENT_S:
            draft.times = msgspec.structs.replace(draft.times, verdict_s=self._cause_s, evicted_s=self._evicted_s)

    def _over(self, draft: _Draft, at_s: float) -> None:
        if draft.times.ended_s is None:
            ended_s = draft.last_end_s if draft.last_end_s is not None else at_s
            draft.times = msgspec.structs.replace(draft.times, ended_s=ended_s)
