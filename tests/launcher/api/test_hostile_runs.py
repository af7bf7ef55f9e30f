"""An operator opens a run directory that another user has filled: nothing else is written, and no command waits for ever."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_groups import FakeTorch

from robust_run.report.files import incident as incident_file
from tests.launcher.api.test_trace_commands import happened

Robust = Callable[..., subprocess.CompletedProcess[str]]

STRANGER = 1666
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root owns what it wants")


@pytest.fixture
def run(make_controller: Callable[..., Any], run_directory: Path) -> Path:
    """A run that is over, with an incident and the trace of a rank."""
    controller = make_controller().start()
    happened(SimpleNamespace(controller=controller))
    incident_file.write(str(run_directory / "incidents" / "0001.json"), controller.incidents()[0])
    (run_directory / "attempt_0" / "0").mkdir(parents=True)
    FakeTorch(run_directory / "attempt_0" / "0" / "ring").ring.claim()
    return run_directory


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the operator's."""
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


@pytest.mark.parametrize(("command", "name"), [("timeline", "timeline.json"), ("report", "report.html")])
def test_a_link_in_a_run_does_not_lead_a_command_to_write_elsewhere(
    run: Path, robust: Robust, precious: Path, command: str, name: str
) -> None:
    (run / name).symlink_to(precious)
    result = robust(command)
    assert result.returncode == 0, result.stderr
    assert precious.read_text() == "precious"
    assert not (run / name).is_symlink()


@needs_root
def test_pages_of_incidents_are_not_written_where_a_strangers_link_leads(
    run: Path, robust: Robust, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / "incidents").rename(elsewhere)
    (run / "incidents").symlink_to(elsewhere)
    os.lchown(run / "incidents", STRANGER, STRANGER)
    before = sorted(elsewhere.iterdir())
    result = robust("report")
    assert result.returncode == 1
    assert f"is a link that user {STRANGER} has put there" in result.stderr
    assert sorted(elsewhere.iterdir()) == before


def test_a_link_of_ones_own_to_where_incidents_are_kept_is_followed(run: Path, robust: Robust, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / "incidents").rename(elsewhere)
    (run / "incidents").symlink_to(elsewhere)
    assert robust("report").returncode == 0
    assert (elsewhere / "0001.html").exists()


@pytest.mark.parametrize("name", ["api.json", "startup.json", "timeline.json", "incidents/0001.scene.json"])
def test_a_pipe_in_place_of_a_file_holds_up_no_command(run: Path, robust: Robust, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for command in ("status", "why", "report", "timeline"):
        robust(command)  # it has a limit


def test_a_journal_larger_than_any_is_not_read(run: Path, robust: Robust) -> None:
    os.truncate(run / "journal.jsonl", 1 << 40)
    for command in ("status", "why", "events", "report", "timeline"):
        result = robust(command)
        assert result.returncode == 2, command
        assert "it has 1099511627776 bytes, the limit is 2147483648" in result.stderr


def test_an_incident_larger_than_any_is_told_by_the_journal(run: Path, robust: Robust) -> None:
    os.truncate(run / "incidents" / "0001.json", 1 << 40)
    assert "never joined all_reduce #4" in robust("why").stdout
    assert "1 incident unreadable" in robust("report").stdout


def test_numbers_that_cannot_be_are_not_counted_to(run: Path, robust: Robust) -> None:
    with open(run / "journal.jsonl", "a") as journal:
        journal.write('{"at":-1e300,"mono":1.0,"event":{"type":"signal_received","signal":15}}\n')
    counts = dict.fromkeys(("attempt", "ranks", "nodes", "seen_ranks", "stepped_ranks"), 1)
    row = {"rank": 0, "node": "a", "spans": [["program", 0.0, 1e300]]}
    attempt = {**counts, "began_unix_s": 1e9, "complete": True, "total_s": 1e300, "phases": [], "rows": [row]}
    startup = {"schema": 1, "run_id": "r", "attempts": [attempt]}
    (run / "startup.json").write_text(json.dumps(startup))
    for command in ("events", "report"):
        result = robust(command)
        assert (result.returncode, result.stderr) == (0, ""), command


DEEP = '{"x":' + "[" * 20_000 + "]" * 20_000 + "}\n"


def test_json_that_is_nested_without_end_is_left_out(run: Path, robust: Robust) -> None:
    with open(run / "journal.jsonl", "a") as journal:
        journal.write(DEEP)
    for name in ("api.json", "startup.json", "incidents/0001.json", "incidents/0001.scene.json"):
        (run / name).write_text(DEEP)
    for command in ("status", "why", "events", "report"):
        result = robust(command)
        assert "Traceback" not in result.stderr, command
        assert "never joined all_reduce #4" in result.stdout or command in ("report", "status")
