"""A job saves into a mount. A rank dies while another one saves, which is ended with it: the job goes on from the step before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from jobs import PATIENT, run, script

from robust_run.ckpt_io.catalog import list_checkpoints
from robust_run.ckpt_io.reading import open_checkpoint

from .conftest import Mount

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
mount, how = sys.argv[1:]
first, state = 1, {"weight": torch.zeros(1_000_000), "step": 0}
if resume := os.environ.get("ROBUST_RESUME"):
    state = torch.load(f"{mount}/{os.path.basename(resume)}")
    first = state["step"] + 1
if not rank:
    print(f"attempt {attempt} begins with step {first}", flush=True)

class Stuck:
    '''A file that comes no further than its middle.'''
    def __init__(self, file):
        self.file, self.left = file, 2_000_000
    def write(self, data):
        self.left -= self.file.write(data)
        if self.left < 0:
            open("half", "w").close()
            time.sleep(3600)
        return len(data)

def save(state, path):
    with open(path, "wb") as file:
        torch.save(state, Stuck(file) if state["step"] == 3 and not attempt else file)

for step in range(first, 6):
    value = torch.ones(1)
    dist.all_reduce(value)
    state = {"weight": state["weight"] + 1, "step": step}
    if not rank and how == "over":
        save(state, f"{mount}/model.pt")
    elif not rank:
        save(state, f"{mount}/step-{step}.pt.tmp")
        os.rename(f"{mount}/step-{step}.pt.tmp", f"{mount}/step-{step}.pt")
    if rank and step == 3 and not attempt:
        while not os.path.exists("half"):
            time.sleep(0.01)
        os._exit(7)
    dist.barrier()
if not rank:
    print("done", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["over", "renamed"])
def test_a_rank_that_is_ended_while_it_saves_leaves_the_step_before(mounted: Mount, tmp_path: Path, how: str) -> None:
    point = Path(mounted(tmp_path / "a", writable=True, unit_bytes=1 << 20).point)
    options = ["--nproc-per-node", "2", "--max-restarts", "1", "--ckpt-dir", "a"]
    code, job = run(tmp_path, *options, script(tmp_path, TRAIN), str(point), how, prefix=PATIENT)
    assert code == 0, job.out + job.err
    assert (tmp_path / "half").exists()
    begun = [line[line.index("attempt") :] for line in job.out.splitlines() if "begins with" in line]
    assert begun == ["attempt 0 begins with step 1", "attempt 1 begins with step 3"]
    assert "done" in job.out
    names = ["model.pt"] if how == "over" else [f"step-{step}.pt" for step in range(1, 6)]
    assert sorted(os.listdir(point)) == names
    assert [found.state for found in list_checkpoints(str(tmp_path / "a"))] == ["valid"] * len(names)
    for name in names:
        state = torch.load(point / name)
        assert state["weight"].unique().tolist() == [state["step"]]
        with open_checkpoint(str(tmp_path / "a" / name)) as checkpoint:
            assert checkpoint.check() == []
    assert torch.load(point / names[-1])["step"] == 5
