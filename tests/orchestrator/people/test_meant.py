"""Which commands about runs are for a job of several roles, and what is said of those that are not."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from robust_run.errors import PlatformError, UserError
from robust_run.orchestrator.people.meant import OF_MEMBERS, SAME, instead, named, newest
from robust_run.orchestrator.roles_file import parse
from robust_run.orchestrator.updates.asking import versions_of_roles
from robust_run.robust_cli import LATE_GROUPS, robust


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an ordinary run and, newer, one of several roles; we are in its parent."""
    folder = tmp_path / "robust-runs"
    (folder / "plain").mkdir(parents=True)
    (folder / "plain" / "journal.jsonl").touch()
    (folder / "dapo" / "members" / "trainer-0.1").mkdir(parents=True)
    (folder / "dapo" / "members" / ".fleet").mkdir()
    (folder / "dapo" / "roles.jsonl").touch()
    os.utime(folder / "plain" / "journal.jsonl", (1000, 1000))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_run_is_named_by_its_path_or_its_name_anywhere_among_the_words(runs: Path) -> None:
    for words in (["dapo"], ["3", "dapo"], ["dapo", "--json"], ["--json", "robust-runs/dapo"], [str(runs / "dapo")]):
        assert named(words, {}) == "robust-runs/dapo", words
    assert named(["dapo", "--log-dir", str(runs)], {}) == "robust-runs/dapo"
    assert named(["dapo"], {"ROBUST_LOG_DIR": str(runs)}) == "robust-runs/dapo"


def test_other_words_name_none(runs: Path) -> None:
    for words in (
        [], ["plain"], ["nonesuch"], ["--log-dir", "robust-runs/dapo"], ["--html", "robust-runs/dapo"], ["a\0b"],
        ["robust-runs"], ["robust-runs/dapo/members/trainer-0.1"],
    ):  # fmt: skip
        assert named(words, {}) == "", words


def test_without_a_name_the_newest_run_is_meant(runs: Path) -> None:
    assert newest([], {})
    os.utime(runs / "dapo" / "roles.jsonl", (500, 500))
    assert not newest([], {})
    assert not newest(["--log-dir", "nowhere"], {})


def test_inside_a_job_that_job_is_meant(runs: Path) -> None:
    assert not newest([], {"ROBUST_RUN_DIR": str(runs / "plain")})


@pytest.mark.parametrize("command", [*SAME, *OF_MEMBERS])
def test_each_of_these_commands_is_one(command: str) -> None:
    assert command in robust.commands or command in LATE_GROUPS


@pytest.mark.parametrize("command", OF_MEMBERS)
def test_a_command_that_is_of_one_member_names_one(runs: Path, command: str) -> None:
    with pytest.raises(UserError, match=rf"robust {command} robust-runs/dapo/members/trainer-0\.1"):
        instead(command, ["dapo"], "robust-runs/dapo")


def test_reports_of_starts_are_of_members(runs: Path) -> None:
    with pytest.raises(UserError, match=r"robust report --startups robust-runs/dapo/members is of all its members"):
        instead("report", ["--startups", "dapo"], "robust-runs/dapo")
    with pytest.raises(UserError, match=r"robust report --what-if robust-runs/dapo/members/trainer-0\.1"):
        instead("report", ["dapo", "--what-if"], "robust-runs/dapo")
    assert instead("report", ["dapo", "--html", "x"], "robust-runs/dapo") == ["report", "dapo", "--html", "x"]


@pytest.mark.parametrize("command", ["top", "why", "incident", "report", "status", "events"])
def test_a_run_that_is_not_there_is_said_whatever_the_newest_is(runs: Path, command: str) -> None:
    with pytest.raises((PlatformError, UserError), match=r"no run 'nonesuch'|is no run"):
        CliRunner().invoke(robust, [command, "nonesuch"], catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("command", ["top", "why", "incident", "report", "status", "events"])
def test_a_job_that_has_written_nothing_yet_is_said(runs: Path, command: str) -> None:
    with pytest.raises(PlatformError, match=r"is no journal of roles|not written yet"):
        CliRunner().invoke(robust, [command], catch_exceptions=False, standalone_mode=False)


def test_help_is_that_of_the_command_itself(runs: Path) -> None:
    said = CliRunner().invoke(robust, ["top", "--help", "dapo"]).output
    assert "Watch a job on the terminal: keys are shown below" in said


def test_to_end_one_it_is_named_though_it_is_the_newest(runs: Path) -> None:
    """`robust stop` would end the ordinary run, which is not the one that was looked at last."""
    with pytest.raises(UserError, match=r"to end one it is named: robust stop robust-runs/dapo"):
        CliRunner().invoke(robust, ["stop"], catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("command", [["stacks"], ["restart"], ["timeline"], ["evict", "node-3"]])
def test_where_no_other_run_is_a_command_that_is_of_one_member_names_one(runs: Path, command: list[str]) -> None:
    (runs / "plain" / "journal.jsonl").unlink()
    with pytest.raises(UserError, match=rf"robust {command[0]} robust-runs/dapo/members/trainer-0\.1"):
        CliRunner().invoke(robust, command, catch_exceptions=False, standalone_mode=False)


def test_code_of_a_role_is_that_of_the_newest_run_unless_another_may_be_meant(runs: Path) -> None:
    head = msgspec.json.encode({"schema": 1, "roles": parse('[roles.trainer]\ncommand = "a.py"\n')})
    (runs / "dapo" / "roles.jsonl").write_bytes(head + b"\n")
    assert list(versions_of_roles("", "", "trainer")) == ["trainer"]
    assert list(versions_of_roles("", str(runs), "trainer")) == ["trainer"]
    (runs / "plain" / "api.json").touch()
    with pytest.raises(UserError, match="several runs may be meant: dapo, plain; name one of them"):
        versions_of_roles("", "", "trainer")
    os.utime(runs / "dapo" / "roles.jsonl", (500, 500))
    with pytest.raises(UserError, match="--role trainer: the newest run is no job of several roles"):
        versions_of_roles("", "", "trainer")


@pytest.mark.parametrize("command", ["top", "why", "status", "events", "roles", "stop"])
def test_what_a_node_has_that_follows_the_leader_is_said(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "robust-runs" / "dapo"
    (folder / "members").mkdir(parents=True)
    (folder / "roles.node-2.place").touch()
    with pytest.raises(PlatformError, match="what one node has of a job of several roles that another node leads"):
        CliRunner().invoke(robust, [command, str(folder)], catch_exceptions=False, standalone_mode=False)
    with pytest.raises(UserError, match="what one node has"):
        versions_of_roles(str(folder), "", "rollout")
