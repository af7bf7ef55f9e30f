"""Where a run keeps its files and what it is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.model.world import World
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.run_output import resolve_log_dir, resolve_run_id


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def log_dir(world: World, *options: str) -> tuple[str | None, tuple[str, ...]]:
    return resolve_log_dir(parse([*options, "train.py"], {}), world)


def run_id(world: World, *options: str, rdzv_id: str | None = None, log_dir: str | None = "/job/robust-runs") -> str:
    return resolve_run_id(parse([*options, "train.py"], {}), rdzv_id, log_dir, world)


def test_runs_are_kept_beside_the_job(machine: Machine) -> None:
    assert log_dir(machine.world()) == ("/job/robust-runs", ())


@pytest.mark.parametrize(
    ("given", "folder"),
    [("/job/a/b/../c", "/job/a/c"), ("logs", "/job/logs"), ("~/runs", "/home/ann/runs"), ("./a b\n", "/job/a b\n")],
)
def test_a_folder_that_is_given_becomes_absolute(machine: Machine, given: str, folder: str) -> None:
    assert log_dir(machine.world(), "--log-dir", given) == (folder, ())


def test_dev_null_keeps_nothing(machine: Machine) -> None:
    assert log_dir(machine.world(), "--log-dir", "/dev/null") == (None, ())


def test_deciding_makes_no_folder(machine: Machine) -> None:
    log_dir(machine.world(), "--log-dir", "/job/a/b")
    assert not Path(f"{machine.root}/job/a").exists()


def test_a_folder_that_cannot_be_written_is_refused(machine: Machine) -> None:
    machine.forbid("/job", os.W_OK)
    with pytest.raises(UserError) as caught:
        log_dir(machine.world(), "--log-dir", "x/y")
    assert str(caught.value) == "--log-dir 'x/y' cannot be used: /job is not writable; choose another folder"


def test_a_file_is_no_folder(machine: Machine) -> None:
    with pytest.raises(UserError) as caught:
        log_dir(machine.world(), "--log-dir", "train.py")
    assert (
        str(caught.value) == "--log-dir 'train.py' cannot be used: /job/train.py is not a folder; choose another folder"
    )


def test_a_read_only_working_folder_sends_logs_to_the_temporary_one_and_says_so(machine: Machine) -> None:
    machine.forbid("/job", os.W_OK)
    folder, notes = log_dir(machine.world())
    assert folder == "/tmp/ann/robust-runs"
    assert notes == ("logs go to /tmp/ann/robust-runs, because /job is not writable; --log-dir chooses another folder",)


def test_tmpdir_is_respected(machine: Machine) -> None:
    machine.forbid("/job", os.W_OK)
    machine.write("/scratch/")
    assert log_dir(machine.world(env={"TMPDIR": "/scratch"}))[0] == "/scratch/ann/robust-runs"


def test_where_nothing_can_be_written_the_user_must_say_what_to_do(machine: Machine) -> None:
    machine.forbid("/job", os.W_OK)
    machine.forbid("/tmp", os.W_OK)
    with pytest.raises(UserError, match="/job is not writable, and /tmp is not writable; give --log-dir FOLDER"):
        log_dir(machine.world())


def test_a_run_is_named_by_the_moment_it_started(machine: Machine) -> None:
    assert run_id(machine.world()) == "20260309-140506-0123"


@pytest.mark.parametrize(
    ("rdzv_id", "name"),
    [
        ("exp7", "exp7_01234567"),
        ("a/b c", "a-b-c_01234567"),
        ("../..", "run_01234567"),
        ("ü", "run_01234567"),
        ("x" * 300, "x" * 100 + "_01234567"),
    ],
)
def test_a_named_job_names_its_runs(machine: Machine, rdzv_id: str, name: str) -> None:
    assert run_id(machine.world(), rdzv_id=rdzv_id) == name


def test_a_run_id_is_taken_as_it_is(machine: Machine) -> None:
    assert run_id(machine.world(), "--run-id", "Exp_7.a-b", rdzv_id="other") == "Exp_7.a-b"


@pytest.mark.parametrize("name", ["a/b", ".", "..", "", "a b", "ä", "a\n", "x" * 129])
def test_a_run_id_that_is_no_name_is_refused(machine: Machine, name: str) -> None:
    with pytest.raises(UserError, match=r"^--run-id") as caught:
        run_id(machine.world(), f"--run-id={name}")
    assert str(caught.value).isprintable()


def test_what_a_leader_of_roles_prepares_for_a_member_is_no_run(machine: Machine) -> None:
    machine.write("/job/robust-runs/prepared/code/start.json")
    machine.write("/job/robust-runs/users/code/mine.py")
    assert run_id(machine.world(), "--run-id", "prepared") == "prepared"
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        run_id(machine.world(), "--run-id", "users")


def test_a_run_is_never_written_over(machine: Machine) -> None:
    machine.write("/job/robust-runs/done/journal.jsonl")
    machine.write("/job/robust-runs/empty/")
    machine.write("/job/robust-runs/file")
    for taken in ("done", "file"):
        with pytest.raises(UserError, match=f"/job/robust-runs/{taken} exists and is not an empty folder"):
            run_id(machine.world(), "--run-id", taken)
    assert run_id(machine.world(), "--run-id", "empty") == "empty"
    assert run_id(machine.world(), "--run-id", "done", log_dir=None) == "done"
