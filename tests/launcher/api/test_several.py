"""Several runs in one view: no run hides another, none delays the others, and those that want somebody are told first."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_ground import HOSTILE

from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.operator.reading.client import NoAnswerError
from robust_run.launcher.operator.reading.several import MOST_RUNS, holds_runs, runs_page
from robust_run.launcher.operator.views.run_rows import lines
from robust_run.report.pages.runs_page import RunAttempt, RunRow, RunsPage, runs_html, summary

Make = Callable[..., Any]
STUCK_S = 120.0


@pytest.fixture
def folder(tmp_path: Path, make_controller: Make) -> Path:
    """Runs: one that lost a node, one that was stopped, one whose journal is damaged, one whose controller was elsewhere."""
    runs = tmp_path / "robust-runs"
    for name in ("lost", "over", "damaged", "elsewhere/attempt_0", "empty"):
        (runs / name).mkdir(parents=True, mode=0o700)
    lost = make_controller(fewest=3, folder=runs / "lost").start()
    lost.lose(2)
    over = make_controller(nodes=1, folder=runs / "over").start(1)
    over.tell(SignalReceived(signal=15, again=False))
    over.end_attempt()
    for each in (lost, over):
        each.close()
    (runs / "damaged" / "journal.jsonl").write_bytes(b"\x00\xffno journal\n")
    return runs


def no_controller(path: str) -> bytes:
    raise NoAnswerError("its controller is gone", refused=True)


def by_name(page: RunsPage) -> dict[str, RunRow]:
    return {os.path.basename(row.run_directory): row for row in page.runs}


def test_every_run_is_a_row_and_a_broken_one_says_so(folder: Path) -> None:
    rows = by_name(runs_page(str(folder), {}, STUCK_S, no_controller))
    assert set(rows) == {"lost", "over", "damaged", "elsewhere"}, "a folder in which no run was is no row"
    assert rows["over"].state == "stopped"
    assert rows["lost"].attempts_count == 2
    assert "gpu-2" in rows["lost"].verdict
    assert [bool(each.why) for each in rows["lost"].attempts] == [True, False]
    assert rows["damaged"].problem
    assert "no journal.jsonl" in rows["elsewhere"].problem


def test_a_controller_that_never_answers_costs_the_others_nothing(folder: Path) -> None:
    """The limit is over before it answers: its row is what its journal says, and that it did not answer."""
    never = threading.Event()
    for name in ("lost", "over"):
        (folder / name / "api.json").write_text("{}")

    def ask(path: str) -> bytes:
        if path.endswith("/lost"):
            never.wait(STUCK_S)
        return no_controller(path)

    try:
        rows = by_name(runs_page(str(folder), {}, 1.0, ask))
    finally:
        never.set()
    assert rows["lost"].state == "not known"
    assert rows["lost"].note == "its controller did not answer within 1 s"
    assert rows["lost"].attempts_count == 2
    assert rows["over"].state == "stopped"


def test_a_fault_of_one_hides_no_other(folder: Path) -> None:
    (folder / "lost" / "api.json").write_text("{}")

    def ask(path: str) -> bytes:
        raise ZeroDivisionError(path)

    rows = by_name(runs_page(str(folder), {}, STUCK_S, ask))
    assert rows["lost"].state == "not known"
    assert rows["over"].state == "stopped"


def test_the_newest_is_first_and_so_many_are_listed(tmp_path: Path) -> None:
    for number in range(MOST_RUNS + 3):
        run = tmp_path / f"run-{number:04d}"
        run.mkdir()
        (run / "journal.jsonl").write_bytes(b"")
        os.utime(run / "journal.jsonl", (number, number))

    page = runs_page(str(tmp_path), {}, STUCK_S, no_controller)
    assert (len(page.runs), page.left_out) == (MOST_RUNS, 3)
    assert "3 older runs not listed" in runs_html(page)


def test_a_run_is_no_folder_of_runs(folder: Path) -> None:
    assert holds_runs(str(folder))
    assert not holds_runs(str(folder / "lost"))
    assert not holds_runs(str(folder / "empty"))
    assert not holds_runs("")
    assert not holds_runs("\0")


ROWS = (
    RunRow(
        run_id="a",
        run_directory="/r/a",
        state="running",
        tone="good",
        started_unix_s=1000.0,
        ranks=8,
        nodes=1,
        attempts_count=1,
    ),
    RunRow(
        run_id="b",
        run_directory="/r/b",
        state="HUNG",
        tone="bad",
        script="train.py",
        started_unix_s=400.0,
        ranks=16,
        nodes=2,
        ettr=0.9,
        attempts=(
            RunAttempt(number=7, began_unix_s=400.0, ended_unix_s=700.0, why="rank 3 was killed"),
            RunAttempt(number=8, began_unix_s=710.0),
        ),
        attempts_count=9,
        incidents=8,
        verdict="rank 5 never joined",
        page="b/report.html",
    ),
    RunRow(run_id="c", run_directory="/r/c", problem="it cannot be read", tone="bad"),
)


def test_what_wants_somebody_is_named_first() -> None:
    assert summary(ROWS) == "3 runs: 1 HUNG, 1 not readable, 1 running"
    assert summary(ROWS[:1]) == "1 run: 1 running"


def test_the_text_has_a_line_for_each_that_fits_the_terminal() -> None:
    page = RunsPage(folder="/r", at_unix_s=1000.0, runs=ROWS)
    wide = lines(page, 0, lambda said, _: said)
    assert wide[0] == "3 runs: 1 HUNG, 1 not readable, 1 running, in /r"
    assert wide[3].split() == "b HUNG 10 min ago 10 min 16 9 90.0% 8 rank 5 never joined".split()
    assert wide[4].endswith("it cannot be read")
    assert all(len(line) <= 60 for line in lines(page, 60, lambda said, _: said)[1:])
    assert "<red>HUNG" in lines(page, 60, lambda said, colour: f"<{colour}>{said}")[3]


def test_the_page_leads_to_each_run_and_shows_what_ended_its_attempts() -> None:
    html = runs_html(RunsPage(folder="/r", at_unix_s=1000.0, runs=ROWS))
    assert '<a href="b/report.html">b</a>' in html
    assert "attempt 7: 5 min: rank 3 was killed" in html
    assert "the newest 2 drawn" in html
    assert "it cannot be read" in html
    assert "<h1>3 runs: 1 HUNG, 1 not readable, 1 running</h1>" in html


def test_a_run_may_be_called_anything() -> None:
    row = RunRow(
        run_id=HOSTILE, run_directory=HOSTILE, script=HOSTILE, verdict=HOSTILE, problem="", state="running", tone="good",
        page=f"{HOSTILE}/report.html", attempts=(RunAttempt(number=0, began_unix_s=1.0, why=HOSTILE),),
    )  # fmt: skip
    html = runs_html(
        RunsPage(folder=HOSTILE, at_unix_s=2.0, runs=(row, RunRow(run_id=HOSTILE, run_directory="x", problem=HOSTILE)))
    )
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "\u202e" not in html


def test_as_a_user_types_it(
    serve: Callable[..., Any],
    folder: Path,
    run_directory: Path,
    robust: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    serve()
    said = robust("status", "--all")
    assert (said.returncode, said.stderr) == (0, "")
    assert [line.split()[:2] for line in said.stdout.splitlines() if line.startswith("run ")] == [["run", "running"]]
    assert robust("status", "robust-runs").stdout.splitlines()[1] == said.stdout.splitlines()[1]
    written = json.loads(robust("report", "robust-runs", "--json").stdout)
    assert written["schema"] == 1
    assert len(written["runs"]) == 5
    page = (
        Path(written["report"]).read_text() if os.path.isabs(written["report"]) else (folder / "runs.html").read_text()
    )
    assert 'href="run/report.html"' in page
    assert (run_directory / "report.html").exists(), "a run without a page gets one"
    assert robust("status", "--all", "robust-runs/run").returncode == 1


@pytest.mark.parametrize("theirs", [b"<html><title>my results</title>", b""])
def test_a_page_of_somebody_elses_is_not_replaced_and_one_of_ours_is(
    folder: Path, robust: Callable[..., subprocess.CompletedProcess[str]], theirs: bytes
) -> None:
    (folder / "report.html").write_bytes(theirs)  # as tools for tests write it, say
    (folder / "runs.html").write_bytes(theirs)
    refused = robust("report", "robust-runs")
    assert refused.returncode == 1
    assert "is no page of robust-run and is not replaced" in refused.stderr
    assert (folder / "runs.html").read_bytes() == theirs
    (folder / "runs.html").unlink()
    for _ in range(2):
        assert robust("report", "robust-runs").returncode == 0
    assert (folder / "report.html").read_bytes() == theirs
