"""Jobs on a real Slurm whose nodes die, are cut off or lose their daemon: training goes on, and nothing is left anywhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from clusters import TRAIN, children, write
from jobs import wait_for
from slurm_cluster import SlurmCluster
from slurm_jobs import PATIENCE_S, srun, submit

pytestmark = pytest.mark.timeout(600)  # they wait for Slurm, most of the time

#: They are not checked here, which takes each 10 s of CPU; that of the next tests is.
STANDBYS = ("--standby", "2", "--admission-checks", "never")


def test_a_batch_job_trains_on_its_nodes_and_replaces_a_launcher_that_dies(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, sbatch=["-w", "node-[1-4]", "-c2"])
    workers = job.wait_for_steps(0, 4)
    assert [worker.host for worker in workers] == ["node-1", "node-2", "node-3", "node-4"]
    launchers = [line for line in slurm.left_on(slurm["node-3"]) if "-m robust_run" in line]
    pids = {int(line.partition(" ")[0]) for line in launchers}
    (guard,) = pids - {child for pid in pids for child in children(pid)}
    os.kill(guard, signal.SIGKILL)
    job.wait_for_steps(1, 4)
    job.wait_for_event("node_lost")  # of the agent that had left already: it has died once
    job.wait_for_more_steps(1, 4)
    assert job.wait_said("another one is started there").count("another one is started there") == 1
    job.end("COMPLETED")  # though a task of srun's has failed
    assert (job.log_dir / f"slurm-{job.number}.sh").read_text().startswith("#!/bin/bash\n")
    job.assert_nothing_left()


def test_eight_nodes_with_two_workers_each(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, sbatch=["-N8", "-c2", "--gpus-per-node=2"])
    workers = job.wait_for_steps(0, 16)
    assert [worker.host for worker in workers] == [f"node-{1 + rank // 2}" for rank in range(16)]
    job.end("COMPLETED")
    job.assert_nothing_left()


def test_a_standby_takes_the_place_of_any_node_that_loses_power(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = srun(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, srun=["-w", "node-[1-5]"], options=STANDBYS)
    job.wait_for_steps(0, 3)
    job.wait_for_event("node_joined", 5)
    first = next(name for name in job.layout(0) if name != "node-1")
    slurm[first].power_off()
    incident = job.wait_for_incident()
    assert incident["verdict"]["nodes"] == [first]
    job.wait_for_steps(1, 3)
    job.wait_for_candidates()
    is_at_work = "node-1" in job.layout(1)  # or it stands by, if it came last
    slurm["node-1"].power_off()  # the controller's own
    job.wait_for_event("controller_resumed", timeout_s=PATIENCE_S)
    job.wait_for_steps_from_now(3, without="node-1")
    newest = max(worker.attempt for worker in job.workers())
    assert newest >= 1 + is_at_work
    assert not {first, "node-1"} & set(job.layout(newest))
    (job.steps_dir / "done").touch()
    assert job.step is not None
    job.step.wait(PATIENCE_S)
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_batch_job_outlives_the_node_of_its_script(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, sbatch=["-N4"], options=["--standby", "1"])
    job.wait_for_steps(0, 3)
    job.wait_for_candidates()
    first = slurm.job(job.number)["BatchHost"]
    slurm[first].power_off()
    job.wait_for_event("controller_resumed", timeout_s=PATIENCE_S)
    job.wait_for_steps_from_now(3, without=first)
    job.end("COMPLETED")  # after a requeue: the lost script could not end the job, and what follows in it is due
    job.assert_nothing_left()


def test_a_node_that_is_cut_off_stops_and_comes_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    options = ["--standby", "1", "--controller-standby", "1"]
    job = submit(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, sbatch=["-w", "node-[1-4]"], options=options)
    job.wait_for_steps(0, 3)
    job.wait_for_event("node_joined", 4)
    job.wait_for_candidates()
    # One that may not lead: it sees the folder still, and would where a busy machine holds the leader up for a second.
    leaders = job.controllers()
    cut = next(name for name in job.layout(0) if name not in leaders)
    slurm[cut].cut()
    job.wait_for_steps(1, 3)
    before = job.steps_on(slurm[cut])
    job.wait_for_more_steps(1, 3)
    assert job.steps_on(slurm[cut]) == before
    slurm[cut].heal()
    job.wait_for_more_steps(1, 3)
    job.end("COMPLETED")
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_training_does_not_notice_that_slurmd_dies(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, sbatch=["-w", "node-[1-3]"])
    job.wait_for_steps(0, 3)
    slurm.stop_slurmd("node-2")
    wait_for(lambda: slurm.state("node-2") == "down", "Slurm to notice")
    job.wait_for_more_steps(0, 3)
    assert job.hosts_of(0) == ["node-1", "node-2", "node-3"]
    job.end("COMPLETED")
    assert not any("node-2" in incident["verdict"]["nodes"] for incident in job.incidents())
    job.assert_nothing_left()


def test_scancel_ends_a_job_whose_script_ignores_signals(slurm: SlurmCluster, tmp_path: Path) -> None:
    deaf = TRAIN.replace("while not", "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 10, 12, 15)]\n    while not")
    assert deaf != TRAIN
    job = submit(slurm, write(tmp_path, deaf), tmp_path=tmp_path, sbatch=["-N2"], options=["--shutdown-timeout", "1"])
    job.wait_for_steps(0, 2)
    slurm.run("scancel", str(job.number))
    job.ended("CANCELLED")
    assert "requeued" not in job.said()
    job.assert_nothing_left()
