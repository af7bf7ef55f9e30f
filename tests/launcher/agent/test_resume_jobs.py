"""Real jobs whose newest checkpoint cannot be used: the one before is, the job finishes, and nothing is deleted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, run, running, script, wait_for

#: A training of whole numbers: step n adds n. It saves every second step on two targets, and starts where it is told to.
TRAIN = """
import os, sys
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, write_file

HERE = os.path.dirname(os.path.abspath(__file__))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
resume, step, total = os.environ.get("ROBUST_RESUME", ""), 0, 0
with open(f"{HERE}/starts", "a") as starts:
    print(attempt, os.path.basename(resume) or "nothing", os.environ.get("ROBUST_RESUME_STEP", "-"), file=starts)


def read(url):
    with open_checkpoint(url) as opened:
        return int(opened.read_bytes(0, 0, opened.manifest.files[0].size_bytes))


def save():
    plan = begin_save(f"{HERE}/ckpt/step-{step}", [f"{HERE}/more"], unit_bytes=1 << 20)
    data = b"%d" % total + b" " * (2 << 20)
    commit(plan, [write_file(plan, 0, "total", [FilePiece(0, memoryview(data))], len(data))], step=step)


LOAD
while step < 8:
    step += 1
    total += step
    if step % 2 == 0:
        save()
    if step == 7 and attempt == 0:
        open(f"{HERE}/failed", "w").close()
        FAIL
open(f"{HERE}/total", "w").write(str(total))
"""

LOAD = """
if resume:
    total, step = read(resume), int(os.environ["ROBUST_RESUME_STEP"])
"""
DIE = "os.kill(os.getpid(), 9)"
#: What fails does this first: a bit of the newest checkpoint flips.
FLIP = """
        part = f"{HERE}/ckpt/step-6"
        part = next(os.path.join(folder, name) for folder, _, names in os.walk(part) for name in names if name.endswith(".part"))
        with open(part, "r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))
        os.kill(os.getpid(), 9)
"""
TOTAL = str(sum(range(1, 9)))


def train(tmp_path: Path, *, load: str = LOAD, fail: str = DIE) -> str:
    return script(tmp_path, TRAIN.replace("LOAD\n", load).replace("FAIL", fail.strip()))


def job(tmp_path: Path, *arguments: str, path: str) -> tuple[int, Job]:
    return run(tmp_path, "--ckpt-dir", str(tmp_path / "ckpt"), *arguments, path)


def starts(tmp_path: Path) -> list[str]:
    return (tmp_path / "starts").read_text().splitlines()


def said(job: Job, words: str) -> list[str]:
    return [line for line in job.err.splitlines() if words in line]


def incidents(job: Job) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((job.run_dir / "incidents").glob("????.json"))]


def test_an_attempt_starts_from_the_newest_checkpoint_and_says_so(tmp_path: Path) -> None:
    code, done = job(tmp_path, path=train(tmp_path))
    assert (code, (tmp_path / "total").read_text()) == (0, TOTAL), done.err
    assert starts(tmp_path) == ["0 nothing -", "1 step-6 6"]
    assert len(said(done, "attempt 1 starts at step 6 (checkpoint of ")) == 1
    assert not said(done, "attempt 0 starts"), "nothing was there"
    first, second = done.events("resume_chosen")
    assert (first["source"], first["uuid"]) == ("", "")
    assert (second["source"], second["step"], second["address"]) == ("storage", 6, str(tmp_path / "ckpt" / "step-6"))
    (incident,) = incidents(done)
    assert (incident["resume"]["step"], incident["resume"]["uuid"]) == (6, second["uuid"])


def test_a_flipped_bit_in_the_newest_costs_one_attempt_and_no_restart(tmp_path: Path) -> None:
    code, done = job(tmp_path, "--max-restarts", "1", path=train(tmp_path, fail=FLIP))
    assert (code, (tmp_path / "total").read_text()) == (0, TOTAL), done.err
    assert starts(tmp_path) == ["0 nothing -", "1 step-6 6", "2 step-4 4"]
    (line,) = said(done, "has a wrong digest")[-1:]
    assert "attempt 1: step 6 cannot be read: rank 0 on " in line and f"in {tmp_path}/ckpt/step-6" in line
    assert said(done, "attempt 2 starts at step 4") and said(done, "relaunched as attempt 2 (step 6 is passed over)")
    damaged = done.events("resume_chosen")[1]["uuid"]
    (over,) = done.events("resume_chosen")[2]["passed_over"]
    assert (over["uuid"], over["step"]) == (damaged, 6)
    second = incidents(done)[1]
    assert second["verdict"]["rule"] == "damaged_checkpoint"
    assert (second["resume"]["step"], second["resume"]["passed_over"][0]["uuid"]) == (4, damaged)
    explained = subprocess.run(
        [Path(sys.executable).with_name("robust"), "explain", "2", str(done.run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "attempt 2 starts at step 4" in explained.stdout, explained


def test_a_part_that_is_missing_on_the_second_target_costs_no_attempt(tmp_path: Path) -> None:
    lose = 'import shutil; shutil.rmtree(f"{HERE}/more/step-6"); os.kill(os.getpid(), 9)'
    code, done = job(tmp_path, path=train(tmp_path, fail=lose))
    assert (code, (tmp_path / "total").read_text()) == (0, TOTAL), done.err
    assert starts(tmp_path) == ["0 nothing -", "1 step-4 4"]
    (line,) = said(done, "step 6 is passed over")
    assert f"is missing on {tmp_path}/more/step-6; attempt 1 starts at step 4" in line
    assert (tmp_path / "ckpt" / "step-6" / "MANIFEST").exists(), "nothing is deleted"


def test_where_none_can_be_read_the_job_ends_rather_than_begin_anew(tmp_path: Path) -> None:
    flips = """
        for folder, _, names in os.walk(f"{HERE}/ckpt"):
            for name in names:
                if name.endswith(".part"):
                    with open(os.path.join(folder, name), "r+b") as file:
                        file.write(b"X")
        os.kill(os.getpid(), 9)
"""
    code, done = job(tmp_path, path=train(tmp_path, fail=flips))
    assert code == 1, done.err
    assert starts(tmp_path) == ["0 nothing -", "1 step-6 6", "2 step-4 4", "3 step-2 2"]
    assert "none of the checkpoints in" in done.err and "move them away to start from the beginning" in done.err
    assert all(f"step {step}: rank 0 on " in done.err for step in (2, 4, 6))
    assert len(list((tmp_path / "ckpt").glob("*/MANIFEST"))) == 3


#: What fails does this first: the folder of checkpoints is empty, as one is that is not mounted any more.
VANISH = 'os.rename(f"{HERE}/ckpt", f"{HERE}/away"); os.mkdir(f"{HERE}/ckpt"); os.kill(os.getpid(), 9)'


def test_a_folder_that_vanished_after_the_job_saved_there_is_waited_for(tmp_path: Path) -> None:
    with running(tmp_path, "--ckpt-dir", str(tmp_path / "ckpt"), train(tmp_path, fail=VANISH)) as job:
        wait_for(lambda: len(job.actions("look_for_checkpoints")) == 2, "the question")
        (tmp_path / "ckpt").rmdir()
        (tmp_path / "away").rename(tmp_path / "ckpt")
        assert job.finish() == 0, job.err
    assert starts(tmp_path) == ["0 nothing -", "1 step-6 6"]
    assert (tmp_path / "total").read_text() == TOTAL


@pytest.mark.timeout(600)
def test_where_it_does_not_come_back_the_job_ends_rather_than_begin_anew(tmp_path: Path) -> None:
    code, done = job(tmp_path, "--max-restarts", "1", path=train(tmp_path, fail=VANISH))
    assert code == 1, done.err
    assert starts(tmp_path) == ["0 nothing -"]
    assert list((tmp_path / "ckpt").iterdir()) == [], "nothing is written to the bare mount point"
    assert f"an earlier attempt saved step 6 in {tmp_path}/ckpt, where no checkpoint is any more" in done.err


def test_a_job_that_never_saved_there_begins_anew(tmp_path: Path) -> None:
    fails = """
if attempt == 0:
    plan = begin_save(f"{HERE}/elsewhere/step-1", [], unit_bytes=1 << 20)
    commit(plan, [write_file(plan, 0, "total", [FilePiece(0, memoryview(b"0"))], 1)], step=1)
    os.kill(os.getpid(), 9)
"""
    code, done = job(tmp_path, path=train(tmp_path, load=fails))
    assert (code, (tmp_path / "total").read_text()) == (0, TOTAL), done.err
    assert starts(tmp_path) == ["0 nothing -", "1 nothing -"]
    assert said(done, "attempt 1 starts from the beginning: there is no checkpoint yet")


def test_an_exception_of_the_programs_own_is_counted_as_ever(tmp_path: Path) -> None:
    load = """
if attempt > 0:
    raise ValueError("my own mistake")
"""
    code, done = job(tmp_path, path=train(tmp_path, load=load))
    assert code == 1
    assert starts(tmp_path) == ["0 nothing -", "1 step-6 6", "2 step-6 6"]
    assert "the same exception came back after a restart" in done.err


def test_a_damaged_checkpoint_that_the_program_chose_itself_is_its_own_business(tmp_path: Path) -> None:
    load = """
if attempt > 0:
    total, step = read(f"{HERE}/ckpt/step-6"), 6
"""
    fresh = """
        plan = begin_save(f"{HERE}/ckpt/step-9", [], unit_bytes=1 << 20)
        commit(plan, [write_file(plan, 0, "total", [FilePiece(0, memoryview(b"0"))], 1)], step=9)
"""
    code, done = job(tmp_path, path=train(tmp_path, load=load, fail=fresh.strip() + "\n" + FLIP))
    assert code == 1
    assert starts(tmp_path) == ["0 nothing -", "1 step-9 9", "2 step-9 9"], "what the job starts from is whole"
    assert "the same exception came back after a restart" in done.err


def test_what_was_passed_over_stays_so_when_all_was_killed_and_the_run_is_resumed(tmp_path: Path) -> None:
    load = (
        LOAD
        + """
if attempt == 2:
    open(f"{HERE}/up", "w").close()
    import time; time.sleep(600)
"""
    )
    path = train(tmp_path, load=load, fail=FLIP)
    with running(tmp_path, "--ckpt-dir", str(tmp_path / "ckpt"), path) as first:
        first.wait_for_file("up", tmp_path)
        for pid in (first.agent_pid(), first.pid):
            os.kill(pid, signal.SIGKILL)
        first.finish()
        wait_for(lambda: not first.leftovers(), "the workers to be gone")
        argv = [sys.executable, "-m", "robust_run", "--resume", str(first.run_dir)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert starts(tmp_path) == ["0 nothing -", "1 step-6 6", "2 step-4 4", "3 step-4 4"]
    assert (tmp_path / "total").read_text() == TOTAL


def test_a_folder_that_is_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "ckpt").write_text("")
    path = script(tmp_path, "open('ran', 'w')")
    code, done = job(tmp_path, path=path)
    assert code == 1 and not (tmp_path / "ran").exists()
    assert "cannot be listed: Not a directory" in done.err


DDP = """
import os, sys
import torch, torch.distributed as dist
from robust_run.ckpt_io import dcp

HERE = sys.argv[1]
dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss = model(torch.ones(1, 64)).sum(); loss.backward(); optimizer.step()  # there is a state to load into
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
step = 0
if resume := os.environ.get("ROBUST_RESUME"):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, resume)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step = int(os.environ["ROBUST_RESUME_STEP"])
while step < 12:
    step += 1
    optimizer.zero_grad()
    model(torch.full((1, 64), step / 10 + dist.get_rank())).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if step % 3 == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, f"{HERE}/ckpt/step-{step}", step=step)
    if step == 10 and attempt == 0 and "disturbed" in HERE:
        dist.barrier()
        if dist.get_rank() == 0:
            part = max(os.path.join(f, n) for f, _, ns in os.walk(f"{HERE}/ckpt/step-9") for n in ns if n.endswith(".part"))
            with open(part, "r+b") as file:
                file.write(b"XXXX")
            os.kill(os.getpid(), 9)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), f"{HERE}/final.pt")
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)
def test_the_weights_are_those_of_a_run_that_was_not_disturbed(tmp_path: Path) -> None:
    import torch

    path = script(tmp_path, DDP)
    finals = []
    for name in ("disturbed", "calm"):
        (tmp_path / name).mkdir()
        arguments = ("--nproc-per-node", "2", "--ckpt-dir", str(tmp_path / name / "ckpt"))
        code, done = run(tmp_path, *arguments, path, str(tmp_path / name))
        assert code == 0, done.err
        chosen = [event["step"] for event in done.events("resume_chosen")]
        assert chosen == ([None, 9, 6] if name == "disturbed" else [None])
        finals.append(torch.load(tmp_path / name / "final.pt"))
    assert all(torch.equal(finals[0][key], finals[1][key]) for key in finals[1])


def test_a_job_that_hangs_in_its_storage_does_not_begin_anew_and_can_be_stopped(tmp_path: Path) -> None:
    """A FUSE file system whose server was stopped: looking at it never returns."""
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("needs root and /dev/fuse for a file system that hangs")
    mount, code = tmp_path / "dead", tmp_path / "code"
    mount.mkdir()
    code.mkdir()
    hang = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(mount)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert hang.stdout is not None
        if hang.stdout.readline() != "ready\n":
            pytest.skip(f"no FUSE here: {hang.stderr.read() if hang.stderr else ''}")
        path = script(code, "open('ran', 'w')")
        with running(tmp_path, "--ckpt-dir", str(mount / "ckpt"), path, cwd=code) as job:
            wait_for(lambda: job.actions("look_for_checkpoints"), "the question")
            job.signal(signal.SIGTERM)
            assert job.finish() == 143
        assert not (code / "ran").exists()
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
        hang.kill()
        hang.communicate()


#: Mounts a FUSE file system that answers nothing but the first message.
HANGING = """
import ctypes, os, struct, sys, time
fuse = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"hang", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
request = os.read(fuse, 1 << 20)
unique, major, minor = struct.unpack_from("<Q", request, 8)[0], *struct.unpack_from("<II", request, 40)
body = struct.pack("<IIIIHHIIHHIII5I", major, min(minor, 31), 0, 0, 12, 9, 1 << 20, 1, 0, 0, 0, 0, 0, *[0] * 5)[:64]
body = body.ljust(64, b"\\0")
os.write(fuse, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
print("ready", flush=True)
time.sleep(600)
"""
