"""Runs of older versions stay readable: what they left is looked at with the commands of today.

`tests/data/run_before_the_rooms` is what a real job left (at commit ec443c2: 2 ranks, gloo; rank 1 killed itself in the 21st step
of the first attempt), without rings, pages and empty files; names and paths of its machine are replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from robust_run.robust_cli import robust

RECORDED = Path(__file__).resolve().parents[2] / "data" / "run_before_the_rooms"
#: What the job was killed by, in the words that are on record.
VERDICT = "rank 1 died of SIGKILL (signal 9) after 21 steps of this attempt"

Ask = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "a-run"))


@pytest.fixture
def ask(run: Path) -> Ask:
    """Type a command about the run; return what it says."""

    def call(*words: str) -> str:
        result = CliRunner().invoke(robust, [*words, str(run)])
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_status_says_how_the_job_ended_and_what_was_healed(ask: Ask) -> None:
    said = ask("status")
    assert "done with exit code 0 after 2 attempts" in said
    assert "attempt 1: 2 ranks, lasted 18 s, first step after 10.9 s, 40 steps" in said
    assert f"{VERDICT} on node-a; relaunch (it had made progress)" in said


def test_status_as_json_has_the_job_and_its_end(ask: Ask) -> None:
    told = json.loads(ask("status", "--json"))
    assert (told["run_id"], told["phase"], told["exit_code"], told["attempt"]) == ("a-run", "over", 0, 1)


def test_nodes_names_the_node(ask: Ask) -> None:
    assert "node-a" in ask("nodes")


@pytest.mark.parametrize("source", ["its file", "the journal"])
def test_incident_has_the_verdict_the_action_and_the_times(run: Path, ask: Ask, source: str) -> None:
    if source == "the journal":
        (run / "incidents" / "0001.json").write_text("{")  # a disk's doing
    said = ask("incident", "1")
    assert f"{VERDICT} on node-a" in said
    assert "verdict: crash, high confidence, rule died_of_signal, ranks 1, node-a" in said
    assert "done: relaunch: it had made progress" in said
    assert source == "the journal" or "next step 11.5 s after the onset" in said


def test_explain_tells_the_decisions(ask: Ask) -> None:
    said = ask("explain", "1")
    assert "rule died_of_signal, confidence high" in said
    assert "relaunch: it had made progress" in said
    assert ask("explain") == said, "the newest, where none is named"


def test_events_tells_the_story_from_the_first_line_to_the_last(ask: Ask) -> None:
    lines = ask("events").splitlines()
    assert "the job starts" in lines[1]
    assert "the job is over: done, exit code 0" in lines[-1]
    assert any(f"incident: {VERDICT}; relaunch" in line for line in lines)


def test_events_as_json_are_the_lines_of_the_journal(run: Path, ask: Ask) -> None:
    recorded = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    told = [json.loads(line) for line in ask("events", "--json").splitlines()]
    assert [line["event"]["type"] for line in told if "event" in line] == [
        line["event"]["type"] for line in recorded if "event" in line
    ]


def test_report_draws_the_pages_of_the_job_and_of_its_incident(run: Path, ask: Ask) -> None:
    ask("report")
    assert "died of SIGKILL" in (run / "report.html").read_text()
    assert "died_of_signal" in (run / "incidents" / "0001.html").read_text()


def test_report_knows_where_the_time_of_each_start_went(ask: Ask) -> None:
    assert "first step of attempt 1 after 10.9 s: imports 10.4, init 0.1" in ask("report", "--startup")
    assert "first step after 18.4 s" in ask("report", "--startup", "--attempt", "0")


def test_the_recording_is_small_and_names_nobody() -> None:
    files = [path for path in RECORDED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    assert all(b"/tmp/" not in path.read_bytes() and b"root" not in path.read_bytes() for path in files)
