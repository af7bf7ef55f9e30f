"""Several runs at a time: how each one in a folder is. Those that may live are asked side by side, within one limit of time.

What does not answer in time is told from its journal, and what cannot be read is a row that says so: no run hides another.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from robust_run.decoders import json_decoder
from robust_run.errors import RobustRunError
from robust_run.launcher.operator.reading.client import ClientMachine, NoAnswerError, prepare, reach, this_machine
from robust_run.launcher.operator.reading.place import PLACE_NAME
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, NO_JOURNAL, is_run, not_here
from robust_run.launcher.operator.views.life import JobLife, life_of
from robust_run.launcher.operator.views.run_rows import broken_row, row_of
from robust_run.launcher.operator.views.status_types import JobView
from robust_run.report.pages.runs_page import RunRow, RunsPage

#: How long controllers are waited for, all together. The first question has one import its web server.
LIMIT_S = 5.0
#: Runs that are asked or read at a time, and that are listed.
AT_A_TIME, MOST_RUNS = 32, 200
_INCIDENT = re.compile(r"[0-9]{4,6}\.json")

Ask = Callable[[str], bytes]
"""Returns the status that the controller of a run directory answers with. Called in threads. Raises RobustRunError."""
_Answer = bytes | Exception | RunRow


class OtherRuns(Protocol):
    """Runs without a controller: jobs of several roles, which this room knows nothing of."""

    journal: str
    """Name of the file by which their run directories are known."""

    def row(self, path: str, *, may_ask: bool) -> RunRow:
        """Return the row of one: asked for, or by what it left. Raises RobustRunError, OSError."""
        ...

    def draw(self, path: str) -> None:
        """Write its page into it. Raises RobustRunError."""
        ...


def runs_page(
    folder: str,
    env: Mapping[str, str],
    limit_s: float = LIMIT_S,
    ask: Ask | None = None,
    others: OtherRuns | None = None,
) -> RunsPage:
    """Return how the runs of a folder are, the newest first. `ask`: instead of asking their controllers."""
    paths = _folders(folder, others)
    chosen = paths[:MOST_RUNS]
    of_others = {path for path in chosen if others is not None and is_of(others, path)}
    served = [path for path in chosen if os.path.lexists(os.path.join(path, PLACE_NAME)) or path in of_others]
    status = ask or partial(_status, env=env, here=this_machine())
    call = partial(_called, status=status, others=others, of_others=of_others)
    answers = _answers(served, call, limit_s)
    silent = NoAnswerError(f"its controller did not answer within {limit_s:g} s", refused=False)
    rows = []
    for path in chosen:
        answer = answers.get(path, silent) if path in served else None
        rows.append(_row(path, answer, others if path in of_others else None))
    rows.sort(key=lambda row: row.started_unix_s if row.started_unix_s is not None else 0.0, reverse=True)
    return RunsPage(
        folder=os.path.abspath(folder), at_unix_s=time.time(), runs=tuple(rows), left_out=len(paths) - len(chosen)
    )


def is_of(others: OtherRuns, path: str) -> bool:
    """Whether this is the run directory of a job of several roles."""
    return os.path.lexists(os.path.join(path, others.journal)) and not is_run(path)


def holds_runs(folder: str, others: OtherRuns | None = None) -> bool:
    """Whether this is a folder of runs, and no run itself."""
    if not folder or "\0" in folder or is_run(folder) or (others is not None and is_of(others, folder)):
        return False
    return bool(_folders(folder, others))


def _called(path: str, status: Ask, others: OtherRuns | None, of_others: set[str]) -> bytes | RunRow:
    return others.row(path, may_ask=True) if others is not None and path in of_others else status(path)


def _folders(folder: str, others: OtherRuns | None) -> list[str]:
    """Return what runs left in a folder, the one with the latest news first: journals, and what nodes left without one."""
    try:
        with os.scandir(folder) as entries:
            paths = [os.path.abspath(entry.path) for entry in entries]
    except OSError:
        return []
    found = [(written_s, path) for path in paths if (written_s := _written_s(path, others)) is not None]
    return [path for _, path in sorted(found, reverse=True)]


def _written_s(path: str, others: OtherRuns | None) -> float | None:
    for name in (JOURNAL_NAME, *([others.journal] if others is not None else ())):
        with suppress(OSError):
            return os.lstat(os.path.join(path, name)).st_mtime
    try:
        names = os.listdir(path)
        return os.stat(path).st_mtime if any(re.fullmatch(r"attempt_[0-9]+", name) for name in names) else None
    except OSError:
        return None


def _status(path: str, env: Mapping[str, str], here: ClientMachine) -> bytes:
    return reach(path, "", "", env, here).get("/v1/status")


def _answers(paths: Sequence[str], ask: Callable[[str], bytes | RunRow], limit_s: float) -> dict[str, _Answer]:
    """Return what controllers say within a time, by run directory; those that say nothing are missing."""
    give_up_at_s = time.monotonic() + limit_s
    found: dict[str, _Answer] = {}
    left = list(paths[::-1])
    prepare()

    def work() -> None:
        while time.monotonic() < give_up_at_s:
            try:
                path = left.pop()
            except IndexError:
                return
            try:
                found[path] = ask(path)
            except Exception as error:  # told in its row
                found[path] = error

    # Daemons: one that waits for a controller that is stopped does not hold up the end of the command.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_A_TIME, len(paths)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(give_up_at_s - time.monotonic(), 0.0))
    return dict(found)


def _row(path: str, answer: _Answer | None, others: OtherRuns | None) -> RunRow:
    try:
        if isinstance(answer, RunRow):
            return answer
        if others is not None:
            return others.row(path, may_ask=False)
        if not is_run(path):
            is_there = os.path.lexists(os.path.join(path, JOURNAL_NAME))
            return broken_row(path, (not_here(path) if is_there else "") or NO_JOURNAL)
        job = json_decoder(JobView).decode(answer) if isinstance(answer, bytes) else _by_journal(path, answer)
        return row_of(path, job, incidents=_incidents(path), page=_page(path))
    except (RobustRunError, OSError) as error:
        return broken_row(path, str(error))
    except Exception as error:  # what is in one folder hides no other
        return broken_row(path, f"it cannot be understood: {type(error).__name__}: {error}")


def _by_journal(path: str, why: Exception | None) -> JobView:
    """Return how a run is by its journal. `why` its controller says nothing; None: none serves."""
    from robust_run.launcher.operator.reading.dead import read_dead
    from robust_run.launcher.operator.reading.life_signs import signs_of

    dead = read_dead(path)
    has_candidates = dead.spec.many is not None and dead.spec.many.controller_standby > 0
    if (why is None or isinstance(why, NoAnswerError)) and not has_candidates:
        return dead.job(time.time(), life_of(signs_of(dead, path, why)))
    # Who leads a job with candidates is asked of other machines, which may take long: `robust status RUN` does.
    note = str(why or "its controller is gone here; others may lead it")
    return dead.job(time.time(), JobLife(life="unknown", note=note, command=f"robust status {shlex.quote(path)}"))


def _incidents(path: str) -> int:
    try:
        return sum(_INCIDENT.fullmatch(name) is not None for name in os.listdir(os.path.join(path, "incidents")))
    except OSError:
        return 0


def _page(path: str) -> str:
    """Return the page of a run, below the folder of runs."""
    return f"{os.path.basename(path)}/report.html" if os.path.isfile(os.path.join(path, "report.html")) else ""
