"""A job that goes on with fewer nodes, and later with more again, from what all ranks of the world before have in memory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import STEPS, ClusterJob, no_warm, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for

pytestmark = pytest.mark.timeout(900)
#: Four workers import torch.distributed at once, on a machine that is busy.
TORCH_S = 120.0

#: FSDP2 over gloo. Each step is in storage, too, before the next begins, in a folder that the launcher does not know: what
#: memory gives is held against that. A file `hold` has all ranks stand still between two steps: none is killed while it writes.
TRAIN = f"""{STEPS}
    import json
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from robust_run import checkpoint
    from robust_run.checkpoint import storage

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()


    def made():
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(11, 7), nn.Tanh(), nn.Linear(7, 3))
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        return {{"model": model, "optimizer": optimizer, "scale": torch.ones(5), "seen": []}}


    def whole(value):
        if isinstance(value, torch.Tensor):
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            return full.detach().double().flatten().tolist()
        if isinstance(value, dict):
            return {{str(key): whole(inner) for key, inner in value.items()}}
        if isinstance(value, (list, tuple)):
            return [whole(each) for each in value]
        return whole(value.state_dict()) if hasattr(value, "state_dict") else repr(value)


    state = made()
    at = begin = checkpoint.load(state) or 0
    told = os.environ.get("ROBUST_RESUME", "")
    same = None
    if told.startswith("rrck+memory"):
        stored = made()
        storage.load(f"{{STEPS_DIR}}/aside/step-{{begin}}", stored)
        same = whole(stored) == whole(state)
    path = f"{{STEPS_DIR}}/begun.{{ATTEMPT}}.{{RANK}}"
    with open(path + ".part", "w") as file:
        json.dump([begin, world, told, same, state["seen"] == list(range(1, begin + 1))], file)
    os.rename(path + ".part", path)
    done = torch.zeros(1, dtype=torch.int64)
    while not done:
        at += 1
        torch.manual_seed(at)
        state["optimizer"].zero_grad()
        state["model"](torch.randn(4, 11)).square().mean().backward()
        state["optimizer"].step()
        state["scale"] *= 1.5 if at % 2 else 0.5
        state["seen"].append(at)
        checkpoint.save(state, step=at)
        checkpoint.save(state, step=at, folder=f"{{STEPS_DIR}}/aside", every=1)
        is_held = RANK == 0 and os.path.exists(f"{{STEPS_DIR}}/hold.{{ATTEMPT}}")
        done[0] = int(RANK == 0 and os.path.exists(DONE)) + 2 * int(is_held)
        dist.broadcast(done, 0)
        step()
        if done >= 2:
            open(f"{{STEPS_DIR}}/held.{{ATTEMPT}}.{{RANK}}", "w").close()
            while True:
                pause(1)
        pause(0.1)
    dist.destroy_process_group()
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def begun(job: ClusterJob, attempt: int, ranks: int) -> list[Any]:
    """What each rank of an attempt says of its start."""
    paths = [job.steps_dir / f"begun.{attempt}.{rank}" for rank in range(ranks)]
    wait_for(lambda: all(path.exists() for path in paths), f"the ranks of attempt {attempt}:\n{job.said()}", TORCH_S)
    return [json.loads(path.read_text()) for path in paths]


def chosen(job: ClusterJob, attempt: int) -> dict[str, Any]:
    (event,) = [event for event in job.events("resume_chosen") if event["attempt"] == attempt]
    return event


def hold(job: ClusterJob, attempt: int, ranks: int) -> int:
    """Have the ranks of an attempt stand still; return how many steps each of them has made in it."""
    (job.steps_dir / f"hold.{attempt}").touch()
    paths = [job.steps_dir / f"held.{attempt}.{rank}" for rank in range(ranks)]
    wait_for(lambda: all(path.exists() for path in paths), f"attempt {attempt} to stand still:\n{job.said()}", TORCH_S)
    return max(len(worker.times) for worker in job.workers() if worker.attempt == attempt)


def started(cluster: Cluster, tmp_path: Path, *options: str) -> ClusterJob:
    job = start_all(
        cluster,
        write(tmp_path, TRAIN),
        tmp_path=tmp_path,
        options=[
            "--nnodes", "1:2", "--nproc-per-node", "2", *no_warm(), "--restart-grace", "0.3",
            "--rdzv-conf", "keep_alive_max_attempt=6", "--ckpt-dir", str(tmp_path / "ckpt"), *options,
        ],
    )  # fmt: skip
    job.wait_for_steps(0, 4, count=5, timeout_s=TORCH_S)
    orders = wait_for(lambda: told_peers(job), f"both to be told where to send copies:\n{job.said()}", TORCH_S)
    assert orders == {"node-0": "node-1", "node-1": "node-0"}
    made = max(len(worker.times) for worker in job.workers())
    job.wait_for_steps(0, 4, count=made + 20, timeout_s=TORCH_S)  # so that there are copies
    return job


def told_peers(job: ClusterJob) -> dict[str, str]:
    names = job.names()
    orders = [order for order in job.actions("memory_peers") if order["attempt"] == 0]
    told = {names[peer["node"]]: peer["name"] for order in orders for peer in order["peers"]}
    return told if len(told) == 2 else {}


def test_two_nodes_then_one_then_two_go_on_from_memory_with_what_storage_has(pair: Cluster, tmp_path: Path) -> None:
    job = started(pair, tmp_path)
    try:
        reached = hold(job, 0, 4)
        pair[1].power_off()
        for start in begun(job, 1, 2):
            assert start[1:] == [2, f"rrck+memory://0/{start[0]}?of=4", True, True], (start, job.said())
        event = chosen(job, 1)
        assert (event["source"], event["saved_world_size"], event["world_size"]) == ("peer", 4, 2), event
        assert 0 < event["step"] <= reached, (reached, event)
        assert f"attempt 1 starts at step {event['step']} from memory (of 4 ranks, now 2)" in job.said()
        job.wait_for_steps(1, 2, count=5, timeout_s=TORCH_S)
        hold(job, 1, 2)

        pair[1].power_on()
        job.join(pair[1])
        job.wait_for_event("node_joined", 3, TORCH_S)
        worker = next(each for each in job.workers() if (each.attempt, each.rank) == (1, 1))
        os.kill(pair[0].pid_outside(worker.pid), signal.SIGKILL)  # nodes are only taken in when an attempt begins
        for start in begun(job, 2, 4):
            assert start[1:] == [4, f"rrck+memory://1/{start[0]}?of=2", True, True], (start, job.said())
        again = chosen(job, 2)
        alone = max(len(worker.times) for worker in job.workers() if worker.attempt == 1)
        assert (again["source"], again["saved_world_size"]) == ("peer", 2), again
        assert event["step"] < again["step"] <= event["step"] + alone, "one that the node made alone"
        assert f"attempt 2 starts at step {again['step']} from memory (of 2 ranks, now 4)" in job.said()
        job.wait_for_steps(2, 4, count=5, timeout_s=TORCH_S)
        assert job.finish(TORCH_S)["node-0"] == 0, job.said()
        job.assert_nothing_left()
    finally:
        job.kill_everything()


def test_without_copies_the_parts_of_a_lost_node_are_not_there_and_storage_is_said(
    pair: Cluster, tmp_path: Path
) -> None:
    """What looks the same and is not: a world of another size, of which one node has all it ever had."""
    job = start_all(
        pair,
        write(tmp_path, TRAIN),
        tmp_path=tmp_path,
        options=[
            "--nnodes", "1:2", "--nproc-per-node", "1", *no_warm(), "--restart-grace", "0.3", "--ckpt-copies", "0",
            "--ckpt-every", "2", "--rdzv-conf", "keep_alive_max_attempt=6", "--ckpt-dir", str(tmp_path / "ckpt"),
        ],
    )  # fmt: skip
    try:
        job.wait_for_steps(0, 2, count=5, timeout_s=TORCH_S)
        written = lambda: list((tmp_path / "ckpt").glob("step-*/MANIFEST"))  # noqa: E731
        wait_for(written, f"a step in storage:\n{job.said()}", TORCH_S)
        pair[1].power_off()
        (start,) = begun(job, 1, 1)
        assert (start[1], start[3], start[4]) == (1, None, True), (start, job.said())
        event = chosen(job, 1)
        assert event["source"] == "storage", (event, job.said())
        assert job.finish(TORCH_S)["node-0"] == 0, job.said()
    finally:
        job.kill_everything()
