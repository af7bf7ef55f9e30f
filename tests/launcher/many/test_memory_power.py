"""Nodes that keep memory without copies: a rank that dies costs a step, a lost node brings the job back to storage."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PATIENCE_S, STEPS, ClusterJob, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for

from robust_run.ckpt_io import catalog

TRAIN = f"""{STEPS}
    import torch
    import torch.distributed as dist

    from robust_run import checkpoint

    dist.init_process_group("gloo")
    weights = torch.arange(1, 101, dtype=torch.int64)
    state = {{"weights": weights}}
    at = begin = checkpoint.load(state) or 0
    done = torch.zeros(1, dtype=torch.int64)
    while not done:
        at += 1
        part = (weights * (RANK + 3) + at * 7919) % 2147483647
        dist.all_reduce(part)
        weights.copy_((weights * 31 + part) % 2147483647)
        checkpoint.save(state, step=at, every=50)
        done[0] = int(RANK == 0 and os.path.exists(DONE))
        dist.broadcast(done, 0)
        step()
        pause(0.02)
    with open(f"{{STEPS_DIR}}/final-{{RANK}}", "w") as file:
        print(at, *weights.tolist(), file=file)
    dist.destroy_process_group()
"""


def undisturbed(steps: int) -> list[int]:
    weights = list(range(1, 101))
    for step in range(1, steps + 1):
        parts = [sum((each * (rank + 3) + step * 7919) % 2147483647 for rank in range(2)) for each in weights]
        weights = [(each * 31 + part) % 2147483647 for each, part in zip(weights, parts, strict=True)]
    return weights


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        yield cluster


def steps_made(job: ClusterJob, attempt: int) -> int:
    return min((len(worker.times) for worker in job.workers() if worker.attempt == attempt), default=0)


def test_ranks_go_on_from_memory_and_a_lost_node_from_storage(three: Cluster, tmp_path: Path) -> None:
    options = ["--nnodes", "2", "--standby", "1", "--restart-grace", "0.3", "--ckpt-dir", str(tmp_path / "ckpt")]
    options += ["--ckpt-copies", "0"]
    job = start_all(three, write(tmp_path, TRAIN), tmp_path=tmp_path, options=options)
    try:
        workers = job.wait_for_steps(0, 2, count=60)
        host = next(host for host in three if host.name == workers[1].host)
        os.kill(host.pid_outside(workers[1].pid), signal.SIGKILL)
        job.wait_for_steps(1, 2, count=5)
        (first,) = [event for event in job.events("resume_chosen") if event["attempt"] == 1]
        assert (first["source"], first["step"] >= 60) == ("memory", True), job.said()

        victim = next(host for host in three if host.name in job.layout(1) and host is not three[0])
        kept = lambda: any(each.state == "valid" for each in catalog.list_checkpoints(str(tmp_path / "ckpt")))  # noqa: E731
        wait_for(kept, "a checkpoint in storage", PATIENCE_S)
        victim.power_off()
        job.wait_for_steps(2, 2, count=5)
        (second,) = [event for event in job.events("resume_chosen") if event["attempt"] == 2]
        assert (second["source"], second["step"] % 50) == ("storage", 0), job.said()
        reasons = [each["why"] for each in second["passed_over"]]
        assert reasons == [f"{victim.name}, which held a part of it, is gone"], reasons

        codes = job.finish()
        assert codes["node-0"] == 0, job.said()
        finals = [[int(word) for word in (job.steps_dir / f"final-{rank}").read_text().split()] for rank in range(2)]
        assert finals[0] == finals[1]
        assert finals[0][1:] == undisturbed(finals[0][0])
        job.assert_nothing_left()
    finally:
        job.kill_everything()
