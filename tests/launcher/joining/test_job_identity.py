"""What tells two starts of one job from those of two jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import Machine

from robust_run.launcher.model.job_identity import identity_of
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.validate import resolve


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.write("/job/other.py")
    return made


def key(machine: Machine, *options: str, script: tuple[str, ...] = ("train.py", "--lr", "1")) -> str:
    line = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n0:29400", *options, *script]
    return identity_of(resolve(parse(line, {}), machine.world())).key


def test_two_starts_of_one_line_are_one_job_whatever_the_run_is_called(machine: Machine) -> None:
    assert key(machine) == key(machine) == key(machine, "--run-id", "a") == key(machine, "--run-id", "b")


def test_the_endpoint_the_program_its_arguments_and_the_size_tell_jobs_apart(machine: Machine) -> None:
    keys = {
        key(machine),
        key(machine, "--rdzv-endpoint", "n1:29400"),
        key(machine, "--rdzv-endpoint", "n0:29401"),
        key(machine, "--nnodes", "1:2"),
        key(machine, script=("other.py", "--lr", "1")),
        key(machine, script=("train.py", "--lr", "2")),
        key(machine, "--rdzv-id", "exp7"),
        key(machine, "--rdzv-id", "exp8"),
    }
    assert len(keys) == 8


def test_a_name_counts_for_more_than_the_command(machine: Machine) -> None:
    assert key(machine, "--rdzv-id", "e", script=("other.py",)) == key(machine, "--rdzv-id", "e")
    assert key(machine, "--rdzv-id", "e", "--run-id", "a") == key(machine, "--rdzv-id", "e")


def test_upper_case_and_a_final_dot_make_no_other_host(machine: Machine) -> None:
    assert key(machine, "--rdzv-endpoint", "N0.:29400") == key(machine)
