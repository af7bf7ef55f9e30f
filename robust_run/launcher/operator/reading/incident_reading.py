"""The incidents of a run directory: each from its file, and where that cannot be read, from the journal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

import msgspec

from robust_run.errors import RobustRunError
from robust_run.launcher.records.folds.incidents import IncidentsOnRecord
from robust_run.launcher.records.journal import JournalEntry, in_force
from robust_run.launcher.records.journal_reading import read
from robust_run.report.files import incident as incident_file
from robust_run.report.types import Incident

#: Incidents that are read, the newest: a month with one every three minutes has fewer.
MOST_INCIDENTS = 20_000
#: Times beyond it are none.
MOST_S = 1e11
_NAME = re.compile(r"([0-9]{4,6})\.json")


class IncidentsFound(msgspec.Struct, frozen=True, kw_only=True):
    """The incidents of a run."""

    incidents: tuple[Incident, ...] = ()
    """Oldest first; the number of each is its `id`."""
    from_journal: tuple[int, ...] = ()
    """Those whose file cannot be read: what the journal says of them."""
    lost: tuple[int, ...] = ()
    """Those that the journal does not have either."""
    earlier: int = 0
    """How many older ones were not looked at."""

    def words(self) -> str:
        """Say what was not read, in a clause; empty if all was."""
        older = f"the first {self.earlier} incidents are not shown" if self.earlier else ""
        return "; ".join(filter(None, (self._unread(), older)))

    def _unread(self) -> str:
        broken = len(self.from_journal) + len(self.lost)
        if not broken:
            return ""
        numbers = ", ".join(str(number) for number in sorted((*self.from_journal, *self.lost))[:8])
        more = ", …" if broken > 8 else ""
        kept = "" if self.lost else "; the journal has what was concluded"
        left = f"; {len(self.lost)} left out" if self.lost else ""
        return f"{broken} incident{'s' if broken > 1 else ''} unreadable ({numbers}{more}){kept}{left}"


def read_incidents(
    folder: str,
    recorded: int = 0,
    on_record: Mapping[int, Incident] | None = None,
    known: Mapping[int, Incident] | None = None,
    most: int = MOST_INCIDENTS,
) -> IncidentsFound:
    """Return the incidents of a run directory. `recorded`: how many the journal has, where that is known.

    The journal is read only where a file cannot be: it may be large. `on_record`: what it has, of who has read it. `known`:
    what was read before and cannot have changed since: it is not read again. Of more than `most` the newest are returned.
    """
    every = sorted(numbers_of(folder) | set(range(max(recorded - most, 0) + 1, recorded + 1)))
    numbers = every[-most:]
    kept = known or {}
    each_of = ((number, kept.get(number) or _read(folder, number)) for number in numbers)
    found = {number: incident for number, incident in each_of if incident is not None}
    broken = tuple(number for number in numbers if number not in found)
    recovered = _sane(on_record) if on_record is not None else _recorded_in(folder) if broken else {}
    found |= {number: recovered[number] for number in broken if number in recovered}
    return IncidentsFound(
        incidents=tuple(found[number] for number in numbers if number in found),
        from_journal=tuple(number for number in broken if number in recovered),
        lost=tuple(number for number in broken if number not in recovered),
        earlier=numbers[0] - 1 if max(len(every), recorded) > most else 0,
    )


def _read(folder: str, number: int) -> Incident | None:
    """Return an incident by its file; None if that cannot be read."""
    try:
        incident = incident_file.read(os.path.join(folder, "incidents", f"{number:04d}.json"))
    except (OSError, ValueError, RecursionError):  # of another shape, no text, no regular file
        return None
    return msgspec.structs.replace(incident, id=number) if _is_sane(incident) else None


def _is_sane(incident: Incident) -> bool:
    """Whether its times can be times: seconds since the epoch, of the last or next 3,000 years."""
    times = (incident.onset_s, incident.detected_s, incident.decided_s, incident.resumed_s or 0.0)
    return all(abs(at_s) <= MOST_S for at_s in times)


def numbers_of(folder: str) -> set[int]:
    """Return the numbers of the incidents that have a file in a run directory."""
    try:
        names = os.listdir(os.path.join(folder, "incidents"))
    except OSError:
        return set()
    return {int(match[1]) for name in names if (match := _NAME.fullmatch(name))} - {0}


def _recorded_in(folder: str) -> dict[int, Incident]:
    try:
        _, entries = read(os.path.join(folder, "journal.jsonl"))
        known = from_entries(in_force(entries))
    except (OSError, RobustRunError):
        return {}
    return _sane(known)


def _sane(known: Mapping[int, Incident]) -> dict[int, Incident]:
    return {number: each for number, each in known.items() if _is_sane(each)}


def from_entries(entries: Iterable[JournalEntry]) -> dict[int, Incident]:
    """Return the incidents that a journal has, by number, with the moment that training went on."""
    record = IncidentsOnRecord()
    for entry in entries:
        record.take(entry)
    return record.found
