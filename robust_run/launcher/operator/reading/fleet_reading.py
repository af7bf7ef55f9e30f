"""All runs of some folders: what they have left for the fleet (`fleet.files.index`), and of the others their run directories.

A run that wrote to its journal after it had left its facts goes on, or has gone on: then its run directory counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from robust_run.errors import PlatformError, UserError
from robust_run.fleet.files import index
from robust_run.fleet.found import Found
from robust_run.fleet.runs import once
from robust_run.fleet.words import RunFacts
from robust_run.launcher.operator.reading.run_facts import Lives, read_facts
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, is_run, runs_in

#: A journal is written to until a moment after the end; clocks of file servers differ.
SLACK_S = 60.0


def read_fleet(folders: Iterable[str], now_s: float, lives: Lives) -> Found:
    """Return the facts of all runs in folders of runs, and of run directories. What cannot be read is counted.

    Raises UserError for a folder that cannot be looked into, PlatformError never.
    """
    found: list[RunFacts] = []
    left_out: Counter[str] = Counter()
    for folder in folders:
        _check(folder)
        kept = index.read(folder) if not is_run(folder) else Found()
        left_out.update(kept.left_out)
        found += kept.facts
        until_s = {each.run_id: each.until_s for each in kept.facts}
        for path in [folder] if is_run(folder) else runs_in(folder):
            if _written_s(path) <= until_s.get(os.path.basename(path), float("-inf")) + SLACK_S:
                continue
            try:
                found.append(read_facts(path, now_s, lives))
            except (UserError, PlatformError, OSError):
                left_out["damaged runs"] += 1
            except Exception:  # what is in one folder hides no other
                left_out["runs that are not understood"] += 1
    return Found(facts=tuple(once(found)), left_out=dict(left_out))


def _check(folder: str) -> None:
    try:
        os.listdir(folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{folder!r} cannot be looked into: {why}; name a folder of runs, or a run directory") from None


def _written_s(path: str) -> float:
    try:
        return os.stat(os.path.join(path, JOURNAL_NAME)).st_mtime
    except OSError:
        return float("inf")  # it says so itself when it is read
