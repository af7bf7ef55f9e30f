"""Reads the facts of all runs in a folder, a run at a time. What cannot be read is counted by its reason, and hides no other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from robust_run.errors import PlatformError, RobustRunError
from robust_run.fleet.words import RunFacts
from robust_run.launcher.operator.reading.run_facts import EmptyJournalError, JournalTooLargeError, Lives, read_facts
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, NO_JOURNAL, is_run
from robust_run.launcher.records.journal_reading import NewerJournalError, NoJournalError

#: A journal that was written so long after the end that is known of its run tells of more: a scheduler has started it again.
#: Clocks of machines differ by less, and a controller writes its last lines within it.
WENT_ON_S = 300.0
#: Of so many it is said what is wrong with them; the others are counted.
MOST_NAMED = 50
_ATTEMPT = re.compile(r"attempt_[0-9]+")

SkipReason = Literal["elsewhere", "empty", "no journal", "newer version", "too large", "unreadable", "not understood"]
"""elsewhere: a node left it whose controller is on another one, or its journal was removed. empty: nothing had happened yet.
no journal: its first line is none of robust-run's. newer version: of the journal. unreadable: permissions, a link that leads
nowhere, a disk. not understood: what is in it led to an error of ours."""


class SkippedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory that was left out."""

    place: str
    reason: SkipReason
    why: str
    """A sentence for people."""


class FolderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of a folder have shown."""

    folder: str
    runs: tuple[RunFacts, ...] = ()
    """By their beginning."""
    skipped: Mapping[SkipReason, int] = {}
    """How many were left out, by reason."""
    named: tuple[SkippedRun, ...] = ()
    """Those of them that are named, at most `MOST_NAMED`."""


Read = Callable[[str], RunFacts]


def facts_of_folder(
    folder: str, now_s: float, lives: Lives, *, known: Mapping[str, RunFacts] | None = None
) -> FolderFacts:
    """Return the facts of the runs in a folder, or of the run that it is. Raises PlatformError where it cannot be listed.

    `now_s`: seconds since the epoch. `known`: by run id, of runs that have written their facts: those that are over are not read
    again, and are there also if their run directories are not any more.
    """
    runs: list[RunFacts] = []
    skipped: dict[SkipReason, int] = {}
    named: list[SkippedRun] = []
    for found in each_run(folder, lambda path: read_facts(path, now_s, lives), known or {}):
        if isinstance(found, RunFacts):
            runs.append(found)
            continue
        skipped[found.reason] = skipped.get(found.reason, 0) + 1
        if len(named) < MOST_NAMED:
            named.append(found)
    runs.sort(key=lambda each: (each.began_s, each.run_id))
    return FolderFacts(folder=os.path.abspath(folder), runs=tuple(runs), skipped=skipped, named=tuple(named))


def each_run(folder: str, read: Read, known: Mapping[str, RunFacts]) -> Iterator[RunFacts | SkippedRun]:
    """Yield the facts of each run in a folder, or why it is left out. One that two links lead to counts once.

    Raises PlatformError where the folder cannot be listed.
    """
    told: set[str] = set()
    seen: set[str] = set()
    for path in _run_directories(folder):
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        name = os.path.basename(path)
        before = known.get(name)
        found = before if before is not None and _is_final(before, path) else _read(path, read)
        told.add(name)
        yield found
    yield from (facts for name, facts in known.items() if name not in told and _is_over(facts))


def _is_over(facts: RunFacts) -> bool:
    return facts.state in ("done", "stopped", "failed")


def _is_final(facts: RunFacts, path: str) -> bool:
    """Whether what a run wrote at its end is all there is to know of it."""
    try:
        written_s = os.stat(os.path.join(path, JOURNAL_NAME)).st_mtime
    except OSError:
        return _is_over(facts)
    return _is_over(facts) and written_s <= facts.until_s + WENT_ON_S


def _read(path: str, read: Read) -> RunFacts | SkippedRun:
    try:
        if not os.path.lexists(os.path.join(path, JOURNAL_NAME)):
            return SkippedRun(place=path, reason="elsewhere", why=NO_JOURNAL)
        return read(path)
    except (RobustRunError, OSError) as error:
        return SkippedRun(place=path, reason=_reason(error), why=str(error))
    except Exception as error:  # what is in one folder hides no other
        return SkippedRun(place=path, reason="not understood", why=f"{type(error).__name__}: {error}")


def _reason(error: Exception) -> SkipReason:
    match error:
        case NewerJournalError():
            return "newer version"
        case NoJournalError():
            return "no journal"
        case EmptyJournalError():
            return "empty"
        case JournalTooLargeError():
            return "too large"
        case _:
            return "unreadable"


def _run_directories(folder: str) -> Iterator[str]:
    """Yield a folder that is a run, or those in it that runs have left, by name."""
    folder = os.path.abspath(folder)
    if is_run(folder):
        yield folder
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise PlatformError(f"cannot list {folder!r}: {why}; give a folder of runs (--log-dir)") from error
    yield from (path for name in names if _is_left_by_run(path := os.path.join(folder, name)))


def _is_left_by_run(path: str) -> bool:
    if os.path.lexists(os.path.join(path, JOURNAL_NAME)):
        return True
    try:
        return any(_ATTEMPT.fullmatch(name) for name in os.listdir(path))
    except NotADirectoryError:
        return False
    except OSError:
        return os.path.isdir(path)  # whose that is cannot be seen: it is counted
