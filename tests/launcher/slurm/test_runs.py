"""After a requeue a step goes on with the run of the step that had its command, whatever its number is now."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from robust_run.launcher.journal import Header
from robust_run.launcher.slurm.runs import earlier_run
from robust_run.launcher.slurm.types import Step
from robust_run.launcher.types import JobSpec, Streams


def spec(*args: str) -> JobSpec:
    return JobSpec(
        argv=("/usr/bin/python3", "train.py", *args),
        script="train.py",
        is_python=True,
        nproc=1,
        run_id="x",
        rdzv_id="x",
        log_dir="/nowhere",
        streams=Streams(redirects=(), tee=(), shown=()),
    )


def run(folder: Path, name: str, job: JobSpec) -> None:
    (folder / name).mkdir()
    header = Header(schema=1, version="1", host="n1", pid=1, job=job)
    (folder / name / "journal.jsonl").write_bytes(msgspec.json.encode(header) + b"\n")


def step(number: str, node_id: int = 0, restart: int = 1, job: str = "7") -> Step:
    return Step(job=job, step=number, nodes=("n1", "n2"), node_id=node_id, node_name="n1", restart=restart)


@pytest.mark.parametrize("number", ["0", "1", "5"])
def test_the_number_of_the_step_does_not_matter(tmp_path: Path, number: str) -> None:
    run(tmp_path, "slurm-7.0", spec())
    assert earlier_run(str(tmp_path), step(number), spec()) == "slurm-7.0"
    assert earlier_run(str(tmp_path), step(number, node_id=1), spec()) == "slurm-7.0"


def test_each_command_has_its_run(tmp_path: Path) -> None:
    run(tmp_path, "slurm-7.0", spec("--first"))
    run(tmp_path, "slurm-7.1", spec("--second"))
    assert earlier_run(str(tmp_path), step("2"), spec("--second")) == "slurm-7.1"
    assert earlier_run(str(tmp_path), step("3"), spec("--first")) == "slurm-7.0"
    assert earlier_run(str(tmp_path), step("4"), spec("--third")) == "slurm-7.4"


def test_steps_of_the_same_command_take_one_each_in_their_order(tmp_path: Path) -> None:
    for name in ("slurm-7.10", "slurm-7.9"):
        run(tmp_path, name, spec())
    assert [earlier_run(str(tmp_path), step(number), spec()) for number in ("11", "12", "13")] == [
        "slurm-7.9",
        "slurm-7.10",
        "slurm-7.13",
    ]
    assert earlier_run(str(tmp_path), step("12", node_id=1), spec()) == "slurm-7.10"
    assert earlier_run(str(tmp_path), step("2", restart=2), spec()) == "slurm-7.9"  # each start takes them anew


def test_a_node_whose_first_says_nothing_goes_on_by_itself(tmp_path: Path) -> None:
    run(tmp_path, "slurm-7.0", spec())
    assert earlier_run(str(tmp_path), step("1", node_id=1), spec(), patience_s=0.0) == "slurm-7.1"


def test_other_jobs_and_broken_runs_are_nobodys(tmp_path: Path) -> None:
    run(tmp_path, "slurm-77.0", spec())
    run(tmp_path, "slurm-7.0-task1", spec())
    (tmp_path / "slurm-7.0").mkdir()
    (tmp_path / "slurm-7.1").mkdir()
    (tmp_path / "slurm-7.1" / "journal.jsonl").write_text("{}\n")
    assert earlier_run(str(tmp_path), step("3"), spec()) == "slurm-7.3"
    assert earlier_run(str(tmp_path / "missing"), step("3"), spec()) == "slurm-7.3"
