"""What a controller that continues must know of the incidents before it, from the lines of a journal, as they come. Pure."""

from __future__ import annotations

from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.check_events import Decided
from robust_run.launcher.model.events import FirstStep
from robust_run.launcher.records.folds.incidents import IncidentsOnRecord
from robust_run.launcher.records.incident_record import OUTCOMES
from robust_run.launcher.records.journal import JournalEntry


class PastIncidents:
    """Follows a journal, whose lines are in force."""

    def __init__(self) -> None:
        self.on_record = IncidentsOnRecord()
        self.awaited: int | None = None
        """The attempt after the newest incident, while it has made no step."""
        self.newest: RecordIncident | None = None
        self.newest_at: float = 0.0
        """When the newest incident was put on record; seconds since the epoch."""
        self.last_at: float = 0.0
        """Time of the last line."""

    def take(self, entry: JournalEntry) -> None:
        """Take in the next line."""
        self.on_record.take(entry)
        self.last_at = entry.at
        match entry.action:
            case RecordIncident(attempt=failed, action=action) as newest:
                self.newest, self.newest_at = newest, entry.at
                if action not in ("stop", "report"):
                    self.awaited = failed + 1
            case Decided(attempt=failed, rung=rung) if rung in OUTCOMES:
                self.awaited = failed + 1
            case _:
                pass
        if isinstance(entry.event, FirstStep) and entry.event.attempt == self.awaited:
            self.awaited = None
