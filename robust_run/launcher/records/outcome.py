"""Outcome of a job whose journal could not be written: a symbolic link in the run directory that leads nowhere.

A link's target is kept in its inode, so that it can be made on a disk that has no room for a byte. It is made only for a job
whose journal has gaps: elsewhere the journal says it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from robust_run.launcher.model.actions import Finish

if TYPE_CHECKING:
    from robust_run.launcher.records.journal import JournalEntry

NAME = "outcome"
#: Why, of such a job; the rest was lost with the journal.
REASON = "its journal is not complete, so no more is known"
_TARGET = re.compile(r"(done|failed|stopped)-([0-9]{1,3})")


def leave(run_directory: str, finish: Finish) -> bool:
    """Leave the mark; return whether it is there. Never raises."""
    path = os.path.join(run_directory, NAME)
    try:
        if os.path.islink(path):
            os.unlink(path)
        os.symlink(f"{finish.outcome}-{finish.exit_code}", path)
    except (OSError, ValueError):
        return False
    return True


def left(run_directory: str) -> tuple[Finish, float] | None:
    """Return how a job ended by its mark, and when (seconds since the epoch); None where there is none. Never raises."""
    path = os.path.join(run_directory, NAME)
    try:
        found = _TARGET.fullmatch(os.readlink(path))
        ended_s = os.lstat(path).st_mtime
    except (OSError, ValueError):
        return None
    if found is None or int(found[2]) > 255:
        return None
    outcome = next(name for name in ("done", "failed", "stopped") if name == found[1])
    return Finish(outcome=outcome, exit_code=int(found[2]), reason=REASON), ended_s  # type: ignore[arg-type]


def told(run_directory: str, entries: Sequence[JournalEntry]) -> Finish | None:
    """Return how a job ended by its journal, else by its mark; None: it did not, or that cannot be told. Never raises."""
    finish = next((entry.action for entry in reversed(entries) if isinstance(entry.action, Finish)), None)
    known = left(run_directory) if finish is None else None
    return known[0] if known is not None else finish
