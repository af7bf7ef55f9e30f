"""Two nodes write a step from memory together, and one goes away in the middle: nothing half counts, and the other goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clusters import PATIENCE_S, PATIENT, STEPS, ClusterJob, start_all, write
from hosts import Cluster, Host, need_hosts
from jobs import wait_for

from robust_run.ckpt_io import catalog
from robust_run.launcher.agent.memory.flush import OTHERS_S

pytestmark = pytest.mark.timeout(600)

TRAIN = f"""{STEPS}
    import torch
    import torch.distributed as dist

    from robust_run import checkpoint

    dist.init_process_group("gloo")
    state = {{"weights": torch.zeros(100_000), "step": 0}}
    begin = checkpoint.load(state) or 0
    assert state["step"] == begin and bool((state["weights"] == begin).all()), (begin, state["step"])
    done = torch.zeros(1, dtype=torch.int64)
    while not done:
        state["step"] += 1
        state["weights"] += 1
        checkpoint.save(state, step=state["step"], every=EVERY)
        done[0] = int(RANK == 0 and os.path.exists(DONE))
        dist.broadcast(done, 0)
        step()
        pause(0.1)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(request.param, tmp_path) as cluster:
        yield cluster


def begin(cluster: Cluster, tmp_path: Path, every: str, copies: str = "0") -> ClusterJob:
    options = ["--nnodes", "2", "--standby", str(len(cluster) - 2), "--restart-grace", "0.3", *PATIENT]
    options += ["--ckpt-dir", str(tmp_path / "ckpt"), "--ckpt-copies", copies]
    job = start_all(cluster, write(tmp_path, TRAIN.replace("EVERY", every)), tmp_path=tmp_path, options=options)
    job.wait_for_steps(0, 2, count=15)
    return job


def writer_on(host: Host) -> int | None:
    """The process on a host that writes a step to storage."""
    for pid in host.pids():
        with suppress(OSError):
            if b"checkpoint.flush.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def valid(folder: Path) -> list[int]:
    found = catalog.list_checkpoints(str(folder)) if folder.exists() else []
    return sorted(each.step or 0 for each in found if each.state == "valid")


def unfinished(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in folder.glob("step-*") if not (path / "MANIFEST").exists()]


def stopped_in_the_middle(host: Host, folder: Path) -> int:
    """Stop the process of a host in the middle of a write, and return the step that is not finished."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at_s:
        pid = writer_on(host)
        if pid is None:
            time.sleep(0.005)
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            if steps := wait_a_moment_for(folder):
                return steps[0]
            os.kill(pid, signal.SIGCONT)
    raise AssertionError("no write was met in the middle")


def wait_a_moment_for(folder: Path) -> list[int]:
    """Return the step that the other node has begun, too; none, if it is finished: this one had done its part."""
    for _ in range(200):
        if found := unfinished(folder):
            return found
        time.sleep(0.01)
    return []


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_node_that_goes_away_while_two_write_costs_what_was_not_written_and_the_next_write_works(
    hosts: Cluster, tmp_path: Path
) -> None:
    job, folder = begin(hosts, tmp_path, "10"), tmp_path / "ckpt"
    try:
        wait_for(lambda: valid(folder), "a checkpoint", 60.0)
        victim = next(host for host in hosts if host.name == job.layout(0)[1])
        step = stopped_in_the_middle(victim, folder)
        before = valid(folder)
        assert step not in before and step > max(before)
        job.wait_for_more_steps(0, 2, more=5)
        victim.power_off()
        job.wait_for_steps(1, 2, count=5)
        (event,) = [event for event in job.events("resume_chosen") if event["attempt"] == 1]
        assert (event["source"], event["step"]) == ("storage", max(before)), (event, job.said())
        wait_for(lambda: max(valid(folder)) > max(before), f"the next checkpoint:\n{job.said()}", 60.0)
        codes = job.finish()
        assert codes["node-0"] == 0, job.said()
        found = catalog.list_checkpoints(str(folder))
        assert [each for each in found if each.state != "valid" or each.leftovers] == [], (found, job.said())
        job.assert_nothing_left([host for host in hosts if host is not victim])
    finally:
        job.kill_everything()


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_node_that_goes_away_at_the_end_of_a_job_is_not_waited_for_for_ever(hosts: Cluster, tmp_path: Path) -> None:
    job, folder = begin(hosts, tmp_path, "'1h'"), tmp_path / "ckpt"
    try:
        victim = next(host for host in hosts if host.name == job.layout(0)[1])
        (job.steps_dir / "done").touch()
        pid = wait_for(lambda: writer_on(victim), "the last write", 60.0)
        os.kill(pid, signal.SIGSTOP)
        assert valid(folder) == []
        victim.power_off()
        other = next(host for host in hosts if host is not victim)
        code = job.on(other).finish(OTHERS_S + PATIENCE_S)
        assert code == 0, job.said()
        assert f"nothing was heard of the node of rank 1 for {OTHERS_S:.0f} s" in job.said(), job.said()
        assert valid(folder) == [] and unfinished(folder) == [], job.said()
        job.assert_nothing_left([other])
    finally:
        job.kill_everything()


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_where_a_node_is_lost_and_nobody_takes_its_place_the_newest_step_goes_to_storage_from_its_copy(
    hosts: Cluster, tmp_path: Path
) -> None:
    """The job waits for another node until it is told to end. Storage alone would have cost all of it."""
    job, folder = begin(hosts, tmp_path, "'1h'", copies="1"), tmp_path / "ckpt"
    try:
        job.wait_for_more_steps(0, 2, more=60)  # copies begin some seconds into an attempt
        victim = next(host for host in hosts if host.name == job.layout(0)[1])
        other = next(host for host in hosts if host is not victim)
        victim.power_off()
        wait_for(lambda: "1 of 2 nodes are here; waiting" in job.said(), "the job to wait", PATIENCE_S)
        assert valid(folder) == []
        os.kill(job.on(other).process.pid, signal.SIGTERM)
        job.on(other).finish(PATIENCE_S)
        (step,) = valid(folder)
        assert f"step {step} was written from memory" in job.said(), job.said()
        assert step >= 30, job.said()
        assert unfinished(folder) == [] and not list(folder.glob(".robust-run-*")), job.said()
        job.assert_nothing_left([other])
    finally:
        job.kill_everything()
