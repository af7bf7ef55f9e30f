"""The Slurm that tests run on (slurm_cluster.py) is a real one: nodes die, are cut off and come back, jobs requeue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import wait_for
from slurm_cluster import SlurmCluster, need_slurm
from slurm_conf import Knobs

pytestmark = pytest.mark.timeout(600)  # they wait for Slurm, most of the time


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    need_slurm()
    with SlurmCluster(tmp_path_factory.mktemp("s"), 3, Knobs(gpus=2, slurmd_timeout_s=6, kill_wait_s=2)) as slurm:
        yield slurm


@pytest.fixture
def slurm(site: SlurmCluster) -> Iterator[SlurmCluster]:
    yield site
    site.reset()


def test_a_step_runs_on_all_nodes(slurm: SlurmCluster) -> None:
    said = slurm.run("srun", "-N3", "bash", "-c", "echo $SLURM_NODEID $SLURMD_NODENAME $(hostname)")
    assert sorted(said.splitlines()) == [f"{number} node-{number + 1} node-{number + 1}" for number in range(3)]


def test_gpus_are_handed_out(slurm: SlurmCluster) -> None:
    assert slurm.run("srun", "-N1", "--gpus-per-node=2", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES") == "0,1"


def test_a_step_without_kill_outlives_nodes_that_lose_power_or_are_cut_off(slurm: SlurmCluster) -> None:
    step = slurm.start(["srun", "-N3", "-K0", "-W0", "--no-kill", "bash", "-c", "hostname; sleep 1000"])
    wait_for(lambda: len(step.lines()) == 3, "all tasks")
    slurm["node-2"].power_off()
    slurm["node-3"].cut()
    for name in ("node-2", "node-3"):
        wait_for(lambda name=name: f"Node failure on {name}" in step.err, "Slurm to notice")  # type: ignore[misc]
        assert slurm.state(name) == "down"
        assert step.poll() is None
    slurm.boot("node-2")
    slurm.heal("node-3")
    for name in ("node-2", "node-3"):
        wait_for(lambda name=name: slurm.state(name) == "idle", f"{name} to be back")  # type: ignore[misc]


def test_a_batch_job_is_requeued_and_excludes_a_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = 'echo run ${SLURM_RESTART_COUNT:-0} on $SLURMD_NODENAME; [ -n "$SLURM_RESTART_COUNT" ] || sleep 1000'
    job = slurm.sbatch(text, "--requeue", "--open-mode=append", f"--output={out}")
    wait_for(lambda: out.exists() and "run" in out.read_text(), "the first run")
    first = out.read_text().split()[3]
    slurm.run("scontrol", "requeuehold", str(job))  # held, or it might start before the next command
    slurm.run("scontrol", "update", f"JobId={job}", f"ExcNodeList={first}")
    slurm.run("scontrol", "release", str(job))
    slurm.wait_state(job, "COMPLETED")
    runs = re.findall(r"run (\d+) on (\S+)", out.read_text())
    assert [count for count, _ in runs] == ["0", "1"]
    assert runs[1][1] != first


def test_slurmd_alone_can_end_and_come_back(slurm: SlurmCluster) -> None:
    step = slurm.start(["srun", "-N1", "-w", "node-1", "--no-kill", "bash", "-c", "echo here; sleep 1000"])
    wait_for(lambda: step.lines() == ["here"], "the task")
    slurm.stop_slurmd("node-1")
    assert any("sleep" in line for line in slurm.left_on(slurm["node-1"]))
    slurm.start_slurmd("node-1")
    dial = ["bash", "-c", f"exec 3<>/dev/tcp/{slurm['node-1'].address}/6818"]
    wait_for(lambda: slurm.login.run(dial, check=False).returncode == 0, "slurmd to listen again")
    step.signal(15)
    wait_for(lambda: not slurm.left_on(slurm["node-1"]), "the step's end")


def test_two_clusters_know_nothing_of_each_other(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmCluster(tmp_path, 1, names=["other"]) as second:
        assert second.run("srun", "bash", "-c", "echo $SLURMD_NODENAME $(hostname)") == "other node-1"
        assert slurm.run("sinfo", "-h", "-o", "%N", "-p", "main") == "node-[1-3]"
