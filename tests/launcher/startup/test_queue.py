"""What Slurm says of the time before the launcher."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from robust_run.launcher.controller import queue_time as queue

LINE = (
    "JobId=7 JobName=train UserId=me(1) Restarts={restarts} BatchFlag={batch} RunTime=00:00:20 "
    "SubmitTime=2026-03-01T12:00:00 EligibleTime={eligible} StartTime=2026-03-01T12:01:30 EndTime=Unknown Command=/x a=b=c"
)


def at(text: str) -> float:
    return time.mktime(time.strptime(f"2026-03-01T{text}", "%Y-%m-%dT%H:%M:%S"))


def line(eligible: str = "2026-03-01T12:00:00", batch: int = 1, restarts: int = 0) -> str:
    return LINE.format(eligible=eligible, batch=batch, restarts=restarts)


def test_a_job_waits_from_when_it_could_have_started() -> None:
    found = queue.parse(line())
    assert found is not None
    assert (found.eligible_unix_s, found.started_unix_s, found.is_batch) == (at("12:00:00"), at("12:01:30"), True)
    later = queue.parse(line(eligible="2026-03-01T12:01:00"))
    assert later is not None
    assert later.eligible_unix_s == at("12:01:00"), "a dependency is no queue"


def test_a_script_is_only_told_of_a_batch_job_that_was_not_requeued() -> None:
    assert [found.is_batch for each in (line(batch=0), line(restarts=2)) if (found := queue.parse(each))] == [
        False,
        False,
    ]


@pytest.mark.parametrize(
    "text", ["", "nonsense", "StartTime=Unknown SubmitTime=2026-03-01T12:00:00", "slurm_load_jobs error"]
)
def test_anything_else_is_nothing(text: str) -> None:
    assert queue.parse(text) is None


def scontrol(folder: Path, script: str) -> dict[str, str]:
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"SLURM_JOB_ID": "7", "PATH": f"{folder}:{os.environ['PATH']}"}


def test_scontrol_is_asked_about_this_very_job(tmp_path: Path) -> None:
    env = scontrol(tmp_path, f'[ "$*" = "--oneliner show job 7" ] && echo "{line()}"')
    found = queue.ask(env)
    assert found is not None
    assert found.started_unix_s == at("12:01:30")


def test_where_it_fails_the_variables_of_the_step_have_to_do(tmp_path: Path) -> None:
    env = scontrol(tmp_path, "exit 1")
    assert queue.ask(env) is None
    found = queue.ask({**env, "SLURM_JOB_START_TIME": "1700000000"})
    assert found is not None
    assert found.eligible_unix_s == found.started_unix_s == 1_700_000_000.0


def test_outside_of_a_job_and_in_later_steps_nobody_is_asked(tmp_path: Path) -> None:
    env = scontrol(tmp_path, f"touch {tmp_path}/asked; echo '{line()}'")
    assert queue.ask({"PATH": env["PATH"]}) is None
    assert queue.ask({**env, "SLURM_STEP_ID": "3"}) is None
    assert queue.ask({**env, "SLURM_JOB_ID": "7; reboot"}) is None
    assert not (tmp_path / "asked").exists()


def test_a_task_of_an_array_asks_for_itself_because_its_number_may_mean_all_of_them(tmp_path: Path) -> None:
    env = scontrol(tmp_path, f'[ "$*" = "--oneliner show job 7_2" ] && echo "{line()}"')
    assert queue.ask({**env, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}) is not None
