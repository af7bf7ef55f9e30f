"""What is missing from the run directory is said at the end, so that nobody takes a finished job for one that broke off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.errors import UserError
from robust_run.launcher.agent.workers.this_machine import system_world
from robust_run.launcher.controller.last_word import say_goodbye
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import Tick
from robust_run.launcher.model.job import JobSpec, OutputStreams, Std
from robust_run.launcher.model.node_events import JobStarted
from robust_run.launcher.operator.pages.report_pages import write_report
from robust_run.launcher.operator.reading.dead import read_dead
from robust_run.launcher.operator.views.advice import next_step
from robust_run.launcher.operator.views.life import JobLife
from robust_run.launcher.records import outcome
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import Journal
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import drawing
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.resume import resume

GONE = JobLife(life="gone", note="its controller is gone", command="robust-run --resume X")


def test_a_journal_and_pages_that_could_not_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "gone"  # nothing can be written there
    problems: list[OSError] = []
    journal = Journal(str(folder / "journal.jsonl"), SystemClock(), lambda _path, error: problems.append(error))
    assert len(problems) == 1 and journal.problem
    said: list[str] = []
    directory = RunDirectory(str(folder), str(folder))
    book = IncidentBook(SystemClock(), directory, said.append, lambda _path, _error: None, make_pages=drawing)
    finish = Finish(outcome="done", exit_code=0, reason="all ranks ended")
    say_goodbye(said.append, directory, book, finish, JobState(), 3.0, journal_problem=journal.problem)
    assert any("journal is not complete" in line and "has finished; do not --resume" in line for line in said), said
    assert any(line.startswith("pages are missing") for line in said), said


def test_a_job_whose_journal_met_a_full_disk_is_known_to_be_over(tmp_path: Path) -> None:
    room = [3]

    def write(descriptor: int, data: bytes) -> int:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        return os.write(descriptor, data)

    journal = Journal(str(tmp_path / "journal.jsonl"), SystemClock(), lambda _path, _error: None, write)
    streams = OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,))
    journal.open_with(
        JobSpec(argv=("p",), script="p", is_python=True, nproc=1, run_id="r", rdzv_id="r", log_dir="", streams=streams),
        "h",
    )
    journal.event(JobStarted(), 1.0)
    finish = Finish(outcome="failed", exit_code=9, reason="rank 0 died")
    while not journal.problem:
        journal.event(Tick(), 2.0, [finish])
    torn = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(torn[:2]))  # nothing of the end is there
    assert read_dead(str(tmp_path)).job(3.0, GONE).resumable, "by the journal alone it broke off"

    said: list[str] = []
    directory = RunDirectory(str(tmp_path), str(tmp_path))
    book = IncidentBook(SystemClock(), directory, said.append, lambda _path, _error: None, make_pages=drawing)
    say_goodbye(said.append, directory, book, finish, JobState(), 3.0, journal_problem=journal.problem)
    assert any("robust status knows how this job ended" in line for line in said), said
    job = read_dead(str(tmp_path)).job(3.0, GONE)
    assert (job.outcome, job.exit_code, job.resumable) == ("failed", 9, False)
    assert "--resume" not in next_step(job)
    assert "--resume" not in Path(write_report(str(tmp_path), GONE).report).read_text()
    world = system_world({})
    with pytest.raises(UserError, match="the job is over: failed"):
        resume(Options(training_script="", resume=str(tmp_path)), world, {})


@pytest.mark.parametrize("target", ["done", "done-256", "failed-1\n", "running-0", "/etc/passwd", ""])
def test_a_mark_that_is_none_of_ours_says_nothing(tmp_path: Path, target: str) -> None:
    if target:
        (tmp_path / "outcome").symlink_to(target)
    else:
        (tmp_path / "outcome").write_text("done-0")
    assert outcome.left(str(tmp_path)) is None
