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

from robust_run.errors import RobustRunError
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, is_run
from robust_run.launcher.operator.views.life import JobLife
from robust_run.launcher.operator.views.run_rows import broken_row, row_of
from robust_run.launcher.operator.views.status_types import JobView
from robust_run.report.pages.runs_page import RunRow, RunsPage

#: How long controllers are waited for, all together. The first question has one import its web server.
LIMIT_S = 5.0
#: Runs that are asked or read at a time, and that are listed.
AT_A_TIME, MOST_RUNS = 32, 200
_INCIDENT = re.compile(r"[0-9]{4,6}\.json")

Ask = Callable[[str], JobView]
"""Returns how the run of a folder is. Raises RobustRunError."""


def runs_page(folder: str, env: Mapping[str, str], limit_s: float = LIMIT_S, ask: Ask | None = None) -> RunsPage:
    """Return how the runs of a folder are, the newest first. `ask`: instead of asking their controllers."""

    def asked(path: str) -> JobView:
        from robust_run.launcher.operator.reading.which import subject

        return subject(env, run=path, log_dir="", url="", token_file="", tls_ca="").job()[0]

    paths = _folders(folder)
    chosen = paths[:MOST_RUNS]
    rows = _all_of(chosen, ask or asked, limit_s)
    now_s = time.time()
    rows.sort(key=lambda row: row.started_unix_s if row.started_unix_s is not None else 0.0, reverse=True)
    return RunsPage(
        folder=os.path.abspath(folder), at_unix_s=now_s, runs=tuple(rows), left_out=len(paths) - len(chosen)
    )


def holds_runs(folder: str) -> bool:
    """Whether this is a folder of runs, and no run itself."""
    return bool(folder) and "\0" not in folder and not is_run(folder) and bool(_folders(folder))


def _folders(folder: str) -> list[str]:
    """Return what runs left in a folder, the one with the latest news first: journals, and what nodes left without one."""
    try:
        with os.scandir(folder) as entries:
            paths = [os.path.abspath(entry.path) for entry in entries]
    except OSError:
        return []
    found = [(written_s, path) for path in paths if (written_s := _written_s(path)) is not None]
    return [path for _, path in sorted(found, reverse=True)]


def _written_s(path: str) -> float | None:
    try:
        return os.lstat(os.path.join(path, JOURNAL_NAME)).st_mtime
    except OSError:
        pass
    try:
        names = os.listdir(path)
        return os.stat(path).st_mtime if any(re.fullmatch(r"attempt_[0-9]+", name) for name in names) else None
    except OSError:
        return None


def _all_of(paths: Sequence[str], ask: Ask, limit_s: float) -> list[RunRow]:
    give_up_at_s = time.monotonic() + limit_s
    found: dict[str, RunRow] = {}
    left = list(paths[::-1])

    def work() -> None:
        while time.monotonic() < give_up_at_s:
            try:
                path = left.pop()
            except IndexError:
                return
            found[path] = _row(path, ask)

    # Daemons: one that waits for a controller that is stopped does not hold up the end of the command.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_A_TIME, len(paths)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(give_up_at_s - time.monotonic(), 0.0))
    answered = dict(found)
    return [answered.get(path) or _row(path, lambda path: _by_journal(path, limit_s)) for path in paths]


def _row(path: str, ask: Ask) -> RunRow:
    try:
        if not is_run(path):
            return broken_row(path, "there is no journal.jsonl in it: its controller is or was on another node")
        return row_of(path, ask(path), incidents=_incidents(path), page=_page(path))
    except (RobustRunError, OSError) as error:
        return broken_row(path, str(error))
    except Exception as error:  # what is in one folder hides no other
        return broken_row(path, f"it cannot be understood: {type(error).__name__}: {error}")


def _by_journal(path: str, limit_s: float) -> JobView:
    from robust_run.launcher.operator.reading.dead import read_dead

    note = f"its controller did not answer within {limit_s:g} s"
    life = JobLife(life="unknown", note=note, command=f"robust status {shlex.quote(path)}")
    return read_dead(path).job(time.time(), life)


def _incidents(path: str) -> int:
    try:
        return sum(_INCIDENT.fullmatch(name) is not None for name in os.listdir(os.path.join(path, "incidents")))
    except OSError:
        return 0


def _page(path: str) -> str:
    """Return the page of a run, below the folder of runs."""
    return f"{os.path.basename(path)}/report.html" if os.path.isfile(os.path.join(path, "report.html")) else ""
