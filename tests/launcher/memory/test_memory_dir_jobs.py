"""Real jobs with a folder in memory: an unmodified program saves there with torch.save, is killed, and goes on from the newest.

Whatever ends the job, no mount and no memory is left; and storage has what was saved, or it is said what it has not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from jobs import Job, kill, run, running, script, wait_for

from robust_run.ckpt_io.mount.manage import check_device
from robust_run.ckpt_io.mount.mounts import ours
from robust_run.errors import PlatformError

OPTIONS = ("--ckpt-memory-dir", "now", "--restart-grace", "0.3", "--max-restarts", "9")
TRAIN = """
import glob, os, signal, sys
import torch
folder, attempt = os.environ["ROBUST_CKPT_MEMORY_DIR"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
plan = {"PLAN"}
rank = int(os.environ["RANK"])


class Dies:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def newest():
    if os.path.exists(folder + "/last.pt"):
        return folder + "/last.pt"
    found = glob.glob(folder + "/step-*.pt")
    return max(found, key=lambda path: int(path[path.rindex("-") + 1 : -3]), default=None)


state = torch.load(newest()) if newest() else {"step": 0, "weights": torch.arange(1 << 16)}
print(f"rank {rank} attempt {attempt} begins at step {state['step']}", flush=True)
while state["step"] < 30:
    state["step"] += 1
    step = state["step"]
    state["weights"] = (state["weights"] * 31 + step) % 65521
    dies = (attempt, step) in plan
    if rank == 0:
        SAVE
print("sum", int(state["weights"].sum()), flush=True)
"""
RENAMED = """
        torch.save(state, folder + "/saving.tmp")
        os.replace(folder + "/saving.tmp", f"{folder}/step-{step}.pt")
        if step > 3:
            os.unlink(f"{folder}/step-{step - 3}.pt")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
"""
IN_PLACE = """
        torch.save({**state, "more": Dies()} if dies else state, folder + "/last.pt")
"""
WAITS = """
import os, time
import torch
torch.save({"weights": torch.zeros(1 << 18)}, os.environ["ROBUST_CKPT_MEMORY_DIR"] + "/a.pt")
open("saved", "w").close()
while True:
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def fuse() -> None:
    try:
        check_device()
        import mfusepy  # noqa: F401
    except (PlatformError, OSError, ImportError) as error:
        pytest.skip(str(error))


def train(save: str, plan: str) -> str:
    return TRAIN.replace('{"PLAN"}', plan).replace("        SAVE", save.strip("\n"))


def undisturbed() -> int:
    import torch

    weights = torch.arange(1 << 16)
    for step in range(1, 31):
        weights = (weights * 31 + step) % 65521
    return int(weights.sum())


def assert_nothing_mounted(tmp_path: Path) -> None:
    wait_for(lambda: not [each for each in ours() if each.point == str(tmp_path / "now")], "the mount to be gone")
    assert os.listdir(tmp_path / "now") == []


@pytest.mark.parametrize("save", [RENAMED, IN_PLACE], ids=["renamed", "in place"])
def test_an_unmodified_program_goes_on_from_the_newest_that_was_whole(tmp_path: Path, save: str) -> None:
    plan = "{(0, 9), (1, 17)}"
    code, job = run(tmp_path, *OPTIONS, "--ckpt-dir", "storage", script(tmp_path, train(save, plan)))
    assert code == 0, job.err
    begins = [0, 9, 17] if save == RENAMED else [0, 8, 16]
    for attempt, step in enumerate(begins):
        assert f"attempt {attempt} begins at step {step}" in job.out, job.out
    assert f"sum {undisturbed()}" in job.out
    assert "from the beginning" not in job.err
    assert_nothing_mounted(tmp_path)
    names = sorted(os.listdir(tmp_path / "storage"))
    assert names == (["step-28.pt", "step-29.pt", "step-30.pt"] if save == RENAMED else ["last.pt"])
    import torch

    assert torch.load(tmp_path / "storage" / names[-1])["step"] == 30


def test_a_new_job_goes_on_from_what_the_last_one_left_in_storage(tmp_path: Path) -> None:
    options = (*OPTIONS, "--nproc-per-node", "2", "--ckpt-dir", "storage", script(tmp_path, train(RENAMED, "{}")))
    assert run(tmp_path, *options)[0] == 0
    code, job = run(tmp_path, *options)
    assert code == 0, job.err
    assert job.out.count("begins at step 30") == 2


def waiting_job(job: Job, tmp_path: Path) -> int:
    """Wait until it has saved; return the pid of what serves the folder."""
    job.wait_for_file("saved", tmp_path)
    served = [line for line in job.leftovers() if "memory_dir.process" in line]
    assert len(served) == 1
    return int(served[0].partition(":")[0])


@pytest.mark.parametrize("who", ["guard", "agent", "both", "SIGTERM"])
def test_whatever_ends_a_job_no_mount_and_no_memory_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.delenv(
        "OMP_NUM_THREADS", raising=False
    )  # its worker starts from nothing: all of the job is the job's own
    with running(tmp_path, *OPTIONS, "--ckpt-dir", "storage", script(tmp_path, WAITS)) as job:
        waiting_job(job, tmp_path)
        agent = job.agent_pid()
        if who == "SIGTERM":
            job.signal(signal.SIGTERM)
        else:
            kill(*{"guard": [job.pid], "agent": [agent], "both": [job.pid, agent]}[who])
        job.process.wait(60.0)
        wait_for(lambda: not job.leftovers(), "its processes to be gone")
        assert_nothing_mounted(tmp_path)
        if who in ("guard", "SIGTERM"):
            assert (tmp_path / "storage" / "a.pt").stat().st_size > 1 << 20


def test_a_folder_whose_process_died_comes_back_with_what_storage_has(tmp_path: Path) -> None:
    with running(tmp_path, *OPTIONS, "--ckpt-dir", "storage", script(tmp_path, WAITS)) as job:
        served = waiting_job(job, tmp_path)
        wait_for((tmp_path / "storage" / "a.pt").exists, "the file in storage")
        kill(served)
        wait_for(lambda: os.path.exists(tmp_path / "now" / "a.pt"), "the folder to be back")
        job.signal(signal.SIGTERM)
        job.finish()
    assert f"process {served} has ended, and what was not in" in job.err
    assert_nothing_mounted(tmp_path)


def test_storage_that_takes_nothing_holds_up_no_training_and_the_end_says_what_is_lost(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, job = run(tmp_path, *OPTIONS, "--ckpt-dir", "file/storage", script(tmp_path, train(RENAMED, "{(0, 9)}")))
    assert code == 0, job.err
    assert f"sum {undisturbed()}" in job.out
    assert "attempt 1 begins at step 9" in job.out
    lost = f"3 files could not be written to {tmp_path}/file/storage (Not a directory), lost: step-28.pt, step-29.pt, step-30.pt"
    assert lost in job.err
    assert job.err.count("stays in memory") <= 1


def test_without_storage_it_is_said_that_files_end_with_the_job(tmp_path: Path) -> None:
    code, job = run(tmp_path, *OPTIONS, script(tmp_path, train(RENAMED, "{(0, 9)}")))
    assert code == 0, job.err
    assert "attempt 1 begins at step 9" in job.out
    assert f"what is saved in {tmp_path}/now ends with this job; --ckpt-dir FOLDER has it written there" in job.err
    assert_nothing_mounted(tmp_path)


def test_a_folder_with_files_is_refused_and_nothing_is_left_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "now").mkdir()
    (tmp_path / "now" / "mine").touch()
    code, job = run(tmp_path, *OPTIONS, script(tmp_path, "print('ran')"))
    assert code == 2
    assert job.err.count("\n") == 1 and "now is not empty: choose an empty folder" in job.err
    assert not job.run_dir.exists()


DCP = """
import os
import torch
from robust_run.ckpt_io import dcp

folder, attempt = os.environ["ROBUST_CKPT_MEMORY_DIR"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
state, step = {"weights": torch.zeros(100)}, 0
if newest := os.environ.get("ROBUST_RESUME"):
    dcp.load(state, newest)
    step = int(os.environ["ROBUST_RESUME_STEP"])
print(f"attempt {attempt} begins at step {step} with {state['weights'][0]}", flush=True)
while step < 9:
    step += 1
    state["weights"] += 1
    dcp.save(state, f"{folder}/step-{step}", step=step)
    if (attempt, step) in ((0, 3), (1, 6)):
        os.kill(os.getpid(), 9)
"""


def test_the_newest_checkpoint_in_memory_is_named_to_the_next_attempt(tmp_path: Path) -> None:
    code, job = run(tmp_path, *OPTIONS, "--ckpt-dir", "storage", script(tmp_path, DCP))
    assert code == 0, job.err
    assert "attempt 1 begins at step 3 with 3.0" in job.out
    assert "attempt 2 begins at step 6 with 6.0" in job.out
    assert "attempt 1 starts at step 3" in job.err
    assert sorted(os.listdir(tmp_path / "storage")) == [f"step-{step}" for step in range(1, 10)]
