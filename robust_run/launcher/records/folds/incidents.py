"""The incidents that a journal has on record, with what became of each, from its lines. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.actions import RecordIncident, StandstillOver
from robust_run.launcher.model.check_events import Decided
from robust_run.launcher.model.events import FirstStep
from robust_run.launcher.model.resume_events import ResumeChosen
from robust_run.launcher.records.incident_record import OUTCOMES, incident_of, resume_of
from robust_run.launcher.records.journal import JournalEntry
from robust_run.report.types import Action, Incident


class IncidentsOnRecord:
    """Follows a journal, whose lines are in force. Of a job with more than `most` incidents the first are kept."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.found: dict[int, Incident] = {}
        """By number."""
        self._most = most

    def take(self, entry: JournalEntry) -> None:
        """Take in the next line."""
        match entry.action:
            case RecordIncident() as action if len(self.found) < self._most:
                number = len(self.found) + 1
                self.found[number] = incident_of(action, number, entry.at - entry.mono, entry.at)
            case StandstillOver(attempt=attempt, at_s=at_s):
                self._went_on(attempt, at_s + entry.at - entry.mono)
            case Decided() as decided:
                self._decided(decided)
        match entry.event:
            case FirstStep(attempt=attempt, at_s=at_s) if self._awaits(attempt):
                self._change(len(self.found), resumed_s=at_s + entry.at - entry.mono)
            case ResumeChosen(attempt=attempt) as chosen if self._awaits(attempt):
                self._change(len(self.found), resume=resume_of(chosen))

    def _awaits(self, attempt: int) -> bool:
        """Whether an attempt is the one that the newest incident led to, and has made no step yet."""
        last = self.found.get(len(self.found))
        if last is None or last.action.name in ("report", "stop"):
            return False
        return attempt == last.attempt + 1 and last.resumed_s is None

    def _went_on(self, attempt: int, over_s: float) -> None:
        told = [each.id for each in self.found.values() if each.attempt == attempt and each.action.name == "report"]
        if told:
            self._change(told[-1], resumed_s=over_s)

    def _decided(self, decided: Decided) -> None:
        """The ladder has decided: an incident whose action was to look further gets what came of it."""
        last = self.found.get(len(self.found))
        if last is not None and last.action.name in ("diagnose", "replay") and decided.rung in OUTCOMES:
            name = OUTCOMES[decided.rung]
            self._change(last.id, action=Action(name=name, nodes=decided.nodes, reason=decided.sentence))  # type: ignore[arg-type]

    def _change(self, number: int, **changes: object) -> None:
        self.found[number] = msgspec.structs.replace(self.found[number], **changes)
