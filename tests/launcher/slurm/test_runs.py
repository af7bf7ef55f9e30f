"""Which run a step of a requeued job goes on with."""

from __future__ import annotations

from slurm_tasks import task_env

from robust_run.slurm.rules.surroundings import read
from robust_run.slurm.rules.types import SlurmStep
from robust_run.slurm.runs import SlurmRun, choose, ordered


def step_of(**changes: str) -> SlurmStep:
    step = read(task_env(SLURM_RESTART_COUNT="1", **changes))
    assert step is not None
    return step


def run(name: str, number: int, taken_by: str = "") -> SlurmRun:
    return SlurmRun(name=name, order=(number, 0), taken_by=taken_by)


def test_the_runs_of_a_job_come_in_the_order_of_their_steps() -> None:
    names = ["slurm-41.10", "slurm-41.2", "slurm-41.2-2", "slurm-410.0", "slurm-41.0-task1", "mine", "slurm-41"]
    assert [name for name, _ in ordered(names, "slurm-41.0", step_of())] == [
        "slurm-41",
        "slurm-41.2",
        "slurm-41.2-2",
        "slurm-41.10",
    ]


def test_tasks_that_are_jobs_of_their_own_find_their_own() -> None:
    names = ["slurm-41.0-task1", "slurm-41.0-task11", "slurm-41.0"]
    assert [name for name, _ in ordered(names, "slurm-41.3-task1", step_of(SLURM_STEP_ID="3"))] == ["slurm-41.0-task1"]


def test_a_run_that_was_named_is_found_by_its_name() -> None:
    assert ordered(["mine", "slurm-41.0"], "mine", step_of()) == [("mine", (0, 0))]


def test_steps_take_the_runs_of_their_command_one_after_the_other() -> None:
    assert choose([run("a", 0), run("b", 1)], "3") == "a"
    assert choose([run("a", 0, taken_by="3"), run("b", 1)], "4") == "b"
    assert choose([run("a", 0, taken_by="3"), run("b", 1, taken_by="4")], "5") == ""


def test_a_node_that_looks_late_finds_what_its_step_has_taken() -> None:
    assert choose([run("a", 0), run("b", 1, taken_by="4")], "4") == "b"
