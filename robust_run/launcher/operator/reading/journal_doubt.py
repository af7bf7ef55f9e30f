"""Whether a journal can show that nothing happened: one that is empty, none at all, or not complete cannot."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import RobustRunError
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.operator.reading.incident_reading import numbers_of
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME
from robust_run.launcher.records.journal import JournalEntry, Terms
from robust_run.launcher.records.journal_reading import LONGEST_LINE_BYTES, header_of
from robust_run.launcher.records.outcome import left
from robust_run.report.files import open_regular

NOT_KNOWN = "what happened is not known"


class JournalSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal is like, and what lies beside it."""

    problem: str = ""
    """Why it is no journal, or cannot be read."""
    cut: int = 0
    """Lines that are cut short."""
    incidents: int = 0
    """How many it has."""
    files: int = 0
    """The highest number of an incident that has a file."""
    has_mark: bool = False
    """The run ended with a mark that is left where the journal could not be written."""


def doubt(path: str, seen: JournalSeen) -> str:
    """Return in a clause why this journal cannot show that nothing happened; empty: nothing speaks against it. Pure."""
    if seen.problem:
        return f"{seen.problem}, so {NOT_KNOWN}"
    why = []
    if seen.has_mark:
        why.append("not all of it could be written")
    if seen.cut:
        why.append(f"{seen.cut} line{'s are' if seen.cut > 1 else ' is'} cut short")
    if seen.files > seen.incidents:
        lacking = seen.files - seen.incidents
        why.append(f"it lacks {lacking} incident{'s that have' if lacking > 1 else ' that has'} a file")
    return f"the journal {path!r} is not complete ({', '.join(why)}), so {NOT_KNOWN}" if why else ""


def doubt_of(run_directory: str, *, is_written: bool) -> str:
    """Return the same of the run in this folder. `is_written`: a controller may be writing the last line at this moment."""
    path = os.path.join(run_directory, JOURNAL_NAME)
    files = max(numbers_of(run_directory), default=0)  # first: an incident is in the journal before it has a file
    try:
        with open_regular(path) as file:
            header_of(file.readline(LONGEST_LINE_BYTES), path)
            cut, incidents = _count(iter(lambda: file.readline(LONGEST_LINE_BYTES), b""), is_written=is_written)
    except OSError as error:
        return doubt(path, JournalSeen(problem=f"cannot read {path!r}: {error.strerror or error}"))
    except RobustRunError as error:
        return doubt(path, JournalSeen(problem=str(error)))
    has_mark = left(run_directory) is not None
    return doubt(path, JournalSeen(cut=cut, incidents=incidents, files=files, has_mark=has_mark))


def _count(lines: Iterable[bytes], *, is_written: bool) -> tuple[int, int]:
    """Return how many lines are cut short, and how many incidents are told. Pure."""
    decoder, terms = json_decoder(JournalEntry), Terms()
    cut = incidents = 0
    for line in lines:
        try:
            entry = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            cut += not _is_json(line) and not (is_written and not line.endswith(b"\n"))
            continue
        incidents += terms.hold(entry.term) and isinstance(entry.action, RecordIncident)
    return cut, incidents


def _is_json(line: bytes) -> bool:
    """Whether a line is whole: one of a newer version may well be none of ours."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return not line.strip()
    return True
