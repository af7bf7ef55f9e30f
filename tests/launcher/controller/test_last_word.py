"""What is missing from the run directory is said at the end, so that nobody takes a finished job for one that broke off."""

from __future__ import annotations

from pathlib import Path

from robust_run.clock import SystemClock
from robust_run.launcher.actions import Finish
from robust_run.launcher.controller.last_word import say_goodbye
from robust_run.launcher.core.state import JobState
from robust_run.launcher.incidents import IncidentBook
from robust_run.launcher.journal import Journal
from robust_run.launcher.run_directory import RunDirectory


def test_a_journal_and_pages_that_could_not_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "gone"  # nothing can be written there
    problems: list[OSError] = []
    journal = Journal(str(folder / "journal.jsonl"), SystemClock(), lambda _path, error: problems.append(error))
    assert len(problems) == 1 and journal.problem
    said: list[str] = []
    directory = RunDirectory(str(folder), str(folder))
    book = IncidentBook(SystemClock(), directory, said.append, lambda _path, _error: None)
    finish = Finish(outcome="done", exit_code=0, reason="all ranks ended")
    say_goodbye(said.append, directory, book, finish, JobState(), 3.0, journal_problem=journal.problem)
    assert any("journal is not complete" in line and "has finished; do not --resume" in line for line in said), said
    assert any(line.startswith("pages are missing") for line in said), said
