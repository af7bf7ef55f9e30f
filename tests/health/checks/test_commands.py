"""`robust check` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from robust_run.errors import UserError
from robust_run.health.commands.check import check


def robust(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "check", *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )


def test_a_sound_node(ground: Any) -> None:
    past = ground.folder / "past.json"
    arguments = ("--only", "disk", "--seconds", "0", "--folder", str(ground.folder), "--history", str(past))
    done = robust(*arguments, env=ground.env())
    assert done.returncode == 0, done.stderr
    assert "nothing was found on" in done.stdout
    assert "write_bytes_per_s" in done.stderr
    assert len(json.loads(past.read_text())["series"]) == 2


@pytest.mark.parametrize(("path", "what"), [("/dev/null/h.json", "cannot read"), ("/proc/1/h.json", "cannot write")])
def test_a_history_that_is_at_fault_says_nothing_about_the_node(ground: Any, path: str, what: str) -> None:
    """Exit code 1 is for suspects: whoever drains nodes by it would drain sound ones."""
    arguments = ("--only", "disk", "--seconds", "0", "--folder", str(ground.folder), "--history", path)
    done = robust(*arguments, env=ground.env())
    assert done.returncode == 0 and "nothing was found on" in done.stdout
    assert f"robust: warning: {what} the history {path}: " in done.stderr


def test_a_node_with_a_finding_as_json(ground: Any) -> None:
    env = ground.env({"crash": 6})
    done = robust("--only", "disk", "--seconds", "0", "--history", "none", "--json", env=env)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert [each["rule"] for each in report["judgement"]["suspects"]] == ["crashed"]
    assert report["results"][0]["outcome"] == "crashed"


def test_the_list_does_nothing(tmp_path: Path) -> None:
    listed = CliRunner().invoke(check, ["--list", "--history", str(tmp_path / "past.json")], standalone_mode=False)
    assert listed.exception is None and "matrix products" in listed.output and "at most 300 s" in listed.output
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "speed"], "no check"),
        (["--only", ""], "nothing is no check"),
        (["--history", "/tmp"], "the history /tmp is a folder"),
        (["--folder", "/nowhere/at/all"], "is no folder"),
        (["--seconds", "nan"], "numbers of seconds"),
        (["--node", "a", "--all"], "one of them"),
        (["run-1"], "--node NAME or --all"),
        (["--all"], "on the node itself"),
    ],
)
def test_wrong_command_lines(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(check, arguments, standalone_mode=False)
    assert isinstance(done.exception, UserError) and says in str(done.exception)
