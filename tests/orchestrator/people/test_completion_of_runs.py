"""What a shell completes RUN to: runs of both kinds, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from robust_run.robust_cli import robust


def completed(*words: str) -> list[tuple[str, str]]:
    """Return what the last word is completed to, and of which kind that is."""
    *before, begun = words
    found = ShellComplete(robust, {}, "robust", "_ROBUST_COMPLETE").get_completions(list(before), begun)
    return [(item.type, item.value) for item in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, file in (
        ("dapo", "roles.jsonl"),
        ("dense", "journal.jsonl"),
        ("other", "notes.txt"),
        (".fleet", "journal.jsonl"),
    ):
        (tmp_path / "robust-runs" / name).mkdir(parents=True)
        (tmp_path / "robust-runs" / name / file).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "robust-runs"


@pytest.mark.parametrize("command", ["top", "status", "why", "incident 1", "report", "roles show", "roles top"])
def test_names_of_runs_are_completed(folder: Path, command: str) -> None:
    assert sorted(completed(*command.split(), "d")) == [("plain", "dapo"), ("plain", "dense")]
    assert completed(*command.split(), "den") == [("plain", "dense")]
    assert completed(*command.split(), "x") == []


def test_a_path_is_completed_by_the_shell(folder: Path) -> None:
    assert completed("top", "robust-runs/d") == [("dir", "robust-runs/d")]


def test_a_command_that_refuses_a_job_of_several_roles_completes_its_options(folder: Path) -> None:
    assert ("plain", "--json") in completed("stacks", "dapo", "--js")


def test_runs_are_looked_for_where_the_command_is_told_to(folder: Path) -> None:
    assert completed("top", "--log-dir", "nowhere", "d") == []
    assert ("plain", "dapo") in completed("top", "--log-dir", str(folder), "d")
