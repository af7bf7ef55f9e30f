"""Real jobs that save to memory alone: however they end, storage has the newest step that all ranks had."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from jobs import run, running, script, wait_for

from robust_run.ckpt_io import catalog

pytestmark = pytest.mark.timeout(600)

OPTIONS = ("--nproc-per-node", "2", "--restart-grace", "0.3", "--max-restarts", "3")
TRAIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from robust_run import checkpoint

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
state = {"weights": torch.zeros(100_000), "seen": []}
begin = checkpoint.load(state) or 0
assert state["seen"] == list(range(1, begin + 1)), (begin, state["seen"])
print("begins at", begin, flush=True)
for step in range(begin + 1, int(sys.argv[1]) + 1):
    dist.all_reduce(torch.ones(1))
    state["weights"] += 1
    state["seen"].append(step)
    if (rank, attempt, step) == (1, 0, int(sys.argv[2])):
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.save(state, step=step)
    open(f"saved-{rank}-{step}", "w").close()
    if step > 20:
        time.sleep(0.02)
assert torch.equal(state["weights"], torch.full((100_000,), float(step)))
dist.barrier()
if sys.argv[3] == "fails":
    sys.exit(3)
dist.destroy_process_group()
"""


def steps_in(folder: Path) -> list[int]:
    found = catalog.list_checkpoints(str(folder))
    assert all(each.state == "valid" and not each.leftovers for each in found), found
    return sorted(each.step or 0 for each in found)


def job(tmp_path: Path, steps: int, dies_at: int = -1, end: str = "", *options: str) -> tuple[str, ...]:
    return (
        *OPTIONS,
        "--ckpt-dir",
        str(tmp_path / "ckpt"),
        *options,
        script(tmp_path, TRAIN),
        str(steps),
        str(dies_at),
        end,
    )


def test_the_last_step_of_a_job_that_is_done_is_in_storage_and_the_next_job_goes_on(tmp_path: Path) -> None:
    code, first = run(tmp_path, *job(tmp_path, 7), cwd=tmp_path)
    assert code == 0, first.err
    assert re.search(rf"step 7 was written from memory to {tmp_path}/ckpt \(\S+ MiB in \S+ s\)", first.err), first.err
    assert steps_in(tmp_path / "ckpt") == [7]
    code, second = run(tmp_path, *job(tmp_path, 9), cwd=tmp_path)
    assert code == 0, second.err
    assert second.out.count("begins at 7") == 2
    assert steps_in(tmp_path / "ckpt") == [7, 9]


def test_a_job_that_is_told_to_end_and_one_that_has_failed_leave_it_there_too(tmp_path: Path) -> None:
    with running(tmp_path, *job(tmp_path, 10_000), cwd=tmp_path) as told:
        wait_for(lambda: (tmp_path / "saved-0-9").exists(), "step 9")
        told.signal(signal.SIGTERM)
        assert told.finish() == 128 + signal.SIGTERM, told.err
    assert told.err.count("was written from memory to") == 1, told.err
    (step,) = steps_in(tmp_path / "ckpt")
    assert step >= 8
    code, failed = run(tmp_path, *job(tmp_path, step + 2, -1, "fails", "--max-restarts", "0"), cwd=tmp_path)
    assert code == 3, failed.err
    assert failed.out.count(f"begins at {step}") == 2
    assert steps_in(tmp_path / "ckpt") == [step, step + 2]


def test_a_rank_that_is_killed_while_storage_is_written_costs_nothing_of_it(tmp_path: Path) -> None:
    code, found = run(tmp_path, *job(tmp_path, 60, 40, "", "--ckpt-every", "1"), cwd=tmp_path)
    assert code == 0, found.err
    assert found.out.count("begins at 39") == 2 or found.out.count("begins at 38") == 2, found.out
    steps = steps_in(tmp_path / "ckpt")
    assert steps[-1] == 60
    assert len(steps) > 1, "nothing was written beside the training"
