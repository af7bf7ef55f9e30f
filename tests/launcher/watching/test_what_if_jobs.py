"""`robust report --what-if`, of a real job with a slow rank, and of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import running, script, wait_for
from report.what_if.pipelines import Pipelines

#: Rank 1 works twice as long as rank 0 in each step.
TRAIN = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank = dist.get_rank()
step = 0
while True:
    time.sleep(0.04 if rank == 1 else 0.02)
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    stop = torch.tensor([float(os.path.exists("stop"))])
    dist.all_reduce(stop)
    optimizer.step()
    step += 1
    if step == 30 and rank == 0:
        open("thirty", "w").close()
    if stop.item():
        break
dist.destroy_process_group()
"""


def told(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "report", "--what-if", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def test_a_slow_rank_of_a_job_is_what_its_steps_would_be_shorter_without(tmp_path: Path) -> None:
    with running(tmp_path, "--nproc-per-node", "2", script(tmp_path, TRAIN)) as job:
        wait_for(lambda: (tmp_path / "thirty").exists(), "thirty steps")
        while_running = told(str(job.run_dir), "--json", cwd=tmp_path)
        (tmp_path / "stop").touch()
        assert job.finish() == 0, job.err
    assert while_running.returncode == 0, while_running.stderr
    found = json.loads(while_running.stdout)
    assert found["what_if"]["source"] == "steps" and found["what_if"]["steps"] >= 5
    assert found["what_if"]["ranks"][0]["what"] == "rank 1"
    assert found["what_if"]["ranks"][0]["ratio"] > 1.3
    assert found["slowdown"] > 1.0


def test_a_trace_in_a_file_is_replayed(tmp_path: Path) -> None:
    ops = Pipelines(factor=lambda dp, stage, step, kind: 3.0 if (dp, stage) == (0, 1) else 1.0).play()
    rows = [f"{op.dp},{op.stage},{op.step},{op.kind},{op.start_s},{op.duration_s},{op.microbatch}" for op in ops]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["dp_rank,stage,step,optype,start,duration,microbatch", *rows]))
    found = told(str(path), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "dp 0 stage 1 as fast as its peers: " in found.stdout


@pytest.mark.parametrize("more", [("--startup",), ("--all",), ("--html", "page.html")])
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, more: tuple[str, ...]) -> None:
    found = told(*more, cwd=tmp_path)
    assert found.returncode == 2 and "--what-if goes with --attempt" in found.stderr
