"""All that is kept of a run's journal, taken in line by line: what grows is the number of attempts and incidents alone. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.core.diagnosis.judge import was_sent_a_signal
from robust_run.launcher.core.ledger_queries import label
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model.code_events import CodeCaptured, CodeUse, StepsSurvived, UpdateStaged
from robust_run.launcher.model.health_events import RuleSpoke
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.launcher.model.resume_events import CheckpointSaved, SavedCheckpoint
from robust_run.launcher.operator.reading.incident_reading import MOST_INCIDENTS, MOST_S
from robust_run.launcher.operator.views.facts.exposure import Exposure
from robust_run.launcher.operator.views.history import AttemptHistory
from robust_run.launcher.records.folds.incidents import IncidentsOnRecord
from robust_run.launcher.records.journal import JournalEntry, JournalHeader, Terms

#: Code versions and checkpoints that are told apart.
MOST_VERSIONS, MOST_SAVES = 10_000, 1_000_000


class Symptom(msgspec.Struct, frozen=True):
    """What of an incident is in the journal alone."""

    trouble: str = ""
    was_killed: bool = False
    """By a signal that somebody sent."""


class RunFold:
    """Follows a journal. What a controller wrote that had been replaced is left out."""

    def __init__(self, header: JournalHeader) -> None:
        self.header = header
        self.history = AttemptHistory()
        self.exposure = Exposure()
        self.on_record = IncidentsOnRecord(MOST_INCIDENTS)
        self.symptoms: dict[int, Symptom] = {}
        """By incident."""
        self.versions: dict[int, str] = {}
        """Of the code: its name by its number."""
        self.rolled_back: set[str] = set()
        """Names of versions."""
        self.saves: dict[str, SavedCheckpoint] = {}
        """Checkpoints that nodes told of, by uuid or name."""
        self.survived_step_s: list[float] = []
        """What a step took, as nodes said when they had made some."""
        self.worlds: dict[int, tuple[int, int]] = {}
        """Nodes and ranks by attempt."""
        self.resumed_host = ""
        """Of the newest controller that took over."""
        self.began_again_s = 0.0
        """When that was."""
        self._terms = Terms()
        self._spoken: tuple[float, RuleSpoke] | None = None
        self._names: dict[str, str] = {}

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return self.header.job

    def take(self, entry: JournalEntry) -> None:
        """Take in the next line; one whose time is none is left out."""
        if not (abs(entry.at) <= MOST_S and abs(entry.mono) <= MOST_S) or not self._terms.hold(entry.term):
            return
        self.history.take(entry)
        self.exposure.take(entry)
        before = len(self.on_record.found)
        self.on_record.take(entry)
        if entry.event is not None:
            self._event(entry.event, entry.at)
        elif isinstance(entry.action, a.RecordIncident) and len(self.on_record.found) > before:
            self.symptoms[before + 1] = self._symptom(entry.action, entry.mono)
        elif entry.action is not None:
            self._action(entry.action, entry.mono)

    def _event(self, event: e.Event, at_s: float) -> None:
        match event:
            case ControllerResumed(host=host):
                self.resumed_host, self.began_again_s = host or self.resumed_host, at_s
            case CodeCaptured(version=version) | UpdateStaged(version=version) if len(self.versions) < MOST_VERSIONS:
                self.versions[version.number] = label(version.number, version.tree)
            case StepsSurvived(step_s=step_s) if 0 < step_s < MOST_S and len(self.survived_step_s) < MOST_SAVES:
                self.survived_step_s.append(step_s)
            case CheckpointSaved(saved=saved):
                self._saved(saved)
            case e.AttemptEnded(saved=saved) if saved is not None:
                self._saved(saved)

    def _action(self, action: a.Action, mono_s: float) -> None:
        match action:
            case a.StartAttempt(attempt=attempt, nodes=nodes, world_size=ranks, code=code):
                self.worlds.setdefault(attempt, (nodes, ranks))
                self._uses(code)
            case RuleSpoke():
                self._spoken = (mono_s, action)

    def _uses(self, code: CodeUse | None) -> None:
        if code is not None and len(self.versions) < MOST_VERSIONS:
            self.versions.setdefault(code.number, label(code.number, code.tree))
            self.rolled_back.update(code.rolled_back)

    def _saved(self, saved: SavedCheckpoint) -> None:
        if len(self.saves) < MOST_SAVES:
            self.saves.setdefault(saved.uuid or saved.name, saved)

    def _symptom(self, action: a.RecordIncident, mono_s: float) -> Symptom:
        draft = action.verdict
        finding = draft.culprit.finding if draft.culprit is not None else None
        trouble: str = finding.trouble if finding is not None else ""
        if "." in draft.rule:
            trouble = draft.rule  # the name of a sensor's alert, or of a rank's last words
        elif self._spoken is not None and self._spoken[0] == mono_s and not self._spoken[1].tolerated:
            trouble = trouble or self._spoken[1].rule
        return Symptom(trouble=trouble.removeprefix("worker."), was_killed=was_sent_a_signal(draft))
