"""Real jobs that are slow: a rank whose loader is late, one whose CPU is limited. They are told, and nothing is done to them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, running, script, wait_for
from small_optimizer import SGD

TRAIN = (
    """
import os, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
"""
    + SGD
    + """
rank = int(os.environ["RANK"])

class Samples(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, at):
        time.sleep(float(os.environ["LATE_S"]) if rank == 1 else 0.002)
        return torch.ones(2)

def crunch(cpu_s):
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = SGD(model.parameters(), lr=0.0)
for step, sample in enumerate(DataLoader(Samples())):
    crunch(0.002)
    time.sleep(0.01)
    optimizer.zero_grad()
    model(sample).sum().backward()
    stop = torch.tensor([float(os.path.exists("stop"))])
    dist.all_reduce(stop)
    optimizer.step()
    if step == 250 and rank == 0:
        open("settled", "w").close()
    if stop.item():
        break
dist.destroy_process_group()
"""
)
ROUND = ("--nproc-per-node", "2", "--slow-round", "0.2")


def told(job: Job, *rules: str) -> dict[str, Any]:
    """Wait until the job tells of a slowness by one of these rules."""

    def found() -> dict[str, Any] | None:
        files = sorted((job.run_dir / "incidents").glob("[0-9][0-9][0-9][0-9].json"))
        return next((one for file in files if (one := json.loads(file.read_text()))["verdict"]["rule"] in rules), None)

    return wait_for(found, f"an incident by {rules}")  # type: ignore[no-any-return]


def ends_untouched(job: Job, folder: Path) -> None:
    (folder / "stop").touch()
    assert job.finish() == 0, job.err
    assert len(job.events("attempt_started")) == 1, "nothing is done unless --on-slow asks"


def test_a_rank_whose_loader_is_late_is_named_with_what_it_waits_and_what_that_costs(tmp_path: Path) -> None:
    with running(tmp_path, *ROUND, script(tmp_path, TRAIN), env={"LATE_S": "0.04"}) as job:
        incident = told(job, "slow_rank")
        ends_untouched(job, tmp_path)
    verdict, evidence = incident["verdict"], json.dumps(incident["evidence"])
    assert verdict["ranks"] == [1]
    assert "; it waits for data " in verdict["sentence"]
    assert "rank-hours a day" in evidence and "to do: " in evidence


@contextmanager
def quota(period_us: int, quota_us: int) -> Iterator[Path]:
    """Make a cgroup with a CPU limit; it is empty and gone afterwards."""
    for mount, name, limit in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", f"{quota_us}"),
        ("/sys/fs/cgroup", "cpu.max", f"{quota_us} {period_us}"),
    ):
        folder = Path(mount) / f"test-{uuid.uuid4().hex[:8]}"
        with suppress(OSError):
            folder.mkdir()
            if (folder / name).exists():
                (folder / name).write_text(limit)
                break
            folder.rmdir()
    else:
        pytest.skip("no cgroup of version 1 can be made here, nor one of 2 that limits CPUs")
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                os.kill(int(pid), 9)
        wait_for(lambda: not (folder / "cgroup.procs").read_text(), "the cgroup to be empty")
        folder.rmdir()


def test_a_rank_that_a_cpu_limit_holds_back_is_named_with_that_limit(tmp_path: Path) -> None:
    with (
        quota(100_000, 1_000) as group,
        running(tmp_path, *ROUND, script(tmp_path, TRAIN), env={"LATE_S": "0.002"}) as job,
    ):
        job.wait_for_file("settled", tmp_path)
        (group / "cgroup.procs").write_text(str(job.pids()[1]))
        verdict = told(job, "slower_rank", "slow_rank", "held_up")["verdict"]
        assert "the CPU limit of their cgroup holds ranks back" in verdict["sentence"]
        assert verdict["rule"] == "held_up" or verdict["ranks"] == [1]
        (group.parent / "cgroup.procs").write_text(str(job.pids()[1]))
        ends_untouched(job, tmp_path)
