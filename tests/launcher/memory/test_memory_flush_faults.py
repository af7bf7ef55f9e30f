"""Real jobs whose storage fails, or hangs, when memory is to be written to it: they train, and they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from jobs import STUCK_S, Job, run, running, script, wait_for
from storage_faults import FullDisk, Hanging

from robust_run.ckpt_io import catalog

pytestmark = pytest.mark.timeout(600)

#: Saves at each step; goes on until a file says that it is enough.
TRAIN = """
import os, sys, time
import torch
from robust_run import checkpoint

state = {"weights": torch.zeros(1 << 19), "step": 0}
begin = checkpoint.load(state) or 0
assert state["step"] == begin and bool((state["weights"] == begin).all())
print("begins at", begin, flush=True)
step = begin
while not os.path.exists("enough"):
    step += 1
    state["step"] = step
    state["weights"] += 1
    checkpoint.save(state, step=step)
    open("step.part", "w").write(str(step))
    os.rename("step.part", "step")
    time.sleep(0.01)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def step_of(folder: Path) -> int:
    path = folder / "step"
    return int(path.read_text()) if path.exists() else 0


def makes_steps(folder: Path, count: int = 10) -> None:
    until = step_of(folder) + count
    wait_for(lambda: step_of(folder) >= until, f"step {until}")


def options(folder: Path, url: str, *more: str) -> tuple[str, ...]:
    return ("--nproc-per-node", "1", "--restart-grace", "0.3", "--ckpt-dir", url, *more, script(folder, TRAIN))


def said_at_the_end(job: Job) -> list[str]:
    return [line for line in job.err.splitlines() if "memory" in line or "storage" in line]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_done_and_whose_storage_hangs_ends_when_it_is_told_to_twice(
    stack: ExitStack, tmp_path: Path, second: signal.Signals
) -> None:
    """It would wait for 10 minutes else. Nothing but a process that nobody can end is left."""
    fault = Hanging(stack, tmp_path)
    with running(tmp_path, *options(tmp_path, fault.url), cwd=tmp_path) as job:
        makes_steps(tmp_path)
        fault.begin()
        stack.callback(fault.heal)
        (tmp_path / "enough").touch()
        wait_for(lambda: writers(job), "the last step to be written")
        job.signal(signal.SIGTERM)
        time.sleep(2.5)  # not in one breath
        assert job.process.poll() is None
        job.signal(second)
        code = ends_while_it_hangs(job, fault)
        assert code in (0, 128 + signal.SIGTERM), job.err
        lines = [line for line in said_at_the_end(job) if "writing step" not in line]
        assert len(lines) == 1 and "cannot be ended: storage hangs" in lines[0], job.err
        job.assert_nothing_left()
    assert valid(fault.behind / "ckpt") == []


def test_a_job_that_is_told_to_end_does_not_wait_for_storage_that_hangs(stack: ExitStack, tmp_path: Path) -> None:
    fault = Hanging(stack, tmp_path)
    with running(tmp_path, *options(tmp_path, fault.url, "--shutdown-timeout", "3"), cwd=tmp_path) as job:
        makes_steps(tmp_path)
        fault.begin()
        stack.callback(fault.heal)
        job.signal(signal.SIGTERM)
        assert ends_while_it_hangs(job, fault) == 128 + signal.SIGTERM, job.err
        assert "storage hangs" in job.err or "there was no more time" in job.err, job.err
        job.assert_nothing_left()
    assert valid(fault.behind / "ckpt") == []


def test_a_disk_that_is_full_at_the_end_is_said_and_the_exit_code_is_the_training_s(
    stack: ExitStack, tmp_path: Path
) -> None:
    fault = FullDisk(stack, tmp_path)
    (tmp_path / "enough").touch()
    program = TRAIN.replace("while not os.path.exists", "while step < begin + 5 or not os.path.exists")
    script(tmp_path, program)
    arguments = ("--nproc-per-node", "1", "--ckpt-dir", fault.url, script(tmp_path, program))
    code, first = run(tmp_path, *arguments, cwd=tmp_path)
    assert code == 0, first.err
    (line,) = said_at_the_end(first)
    assert "step 5 could not be written from memory to" in line and fault.words in line
    fault.heal()
    code, second = run(tmp_path, *arguments, cwd=tmp_path)
    assert code == 0 and "begins at 0" in second.out, (second.out, second.err)
    assert "step 5 was written from memory to" in second.err
    assert valid(Path(fault.url)) == [5]


def test_a_job_keeps_as_many_checkpoints_as_it_is_told_over_failures_and_restarts(tmp_path: Path) -> None:
    """And each attempt starts from one that is there."""
    folder = tmp_path / "ckpt"
    arguments = ("--ckpt-keep", "2", "--ckpt-every", "3", "--max-restarts", "5")
    with running(tmp_path, *options(tmp_path, str(folder), *arguments), cwd=tmp_path) as job:
        for attempt in range(3):
            wait_for(lambda: valid(folder), "a checkpoint")
            makes_steps(tmp_path, 30)
            (pid,) = job.pids(attempt)
            os.kill(pid, signal.SIGKILL)
            job.pids(attempt + 1)
        makes_steps(tmp_path, 30)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert (
            len([line for line in job.err.splitlines() if " starts at step " in line and " from memory" in line]) == 3
        )
    steps = valid(folder)
    assert steps[-1] == step_of(tmp_path) and len(steps) == 2, (steps, job.err)
    (tmp_path / "enough").unlink()
    with running(tmp_path, *options(tmp_path, str(folder), *arguments), cwd=tmp_path) as job:
        makes_steps(tmp_path, 30)
        (tmp_path / "enough").touch()
        assert job.finish() == 0, job.err
        assert f"begins at {steps[-1]}" in job.out
    assert steps[-1] in valid(folder), "the job started from it"
    assert len(valid(folder)) == 3 and valid(folder)[-1] == step_of(tmp_path)


def ends_while_it_hangs(job: Job, fault: Hanging) -> int:
    """The exit code. What storage holds fast has the pipes of the job's output, until it is well again."""
    code = job.process.wait(STUCK_S)
    fault.heal()
    job.finish()
    return code


def writers(job: Job) -> list[str]:
    return [each for each in job.leftovers() if "checkpoint.flush.process" in each]


def valid(folder: Path) -> list[int]:
    if not folder.exists():
        return []
    return sorted(each.step or 0 for each in catalog.list_checkpoints(str(folder)) if each.state == "valid")
