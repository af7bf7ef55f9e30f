"""Jobs on a real Slurm in other shapes: two on one node, several steps, arrays, other names, wrong steps, no scontrol."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import TRAIN, write
from jobs import wait_for
from slurm_cluster import SlurmCluster, need_slurm
from slurm_jobs import PATIENCE_S, ROBUST, ROBUST_RUN, SlurmJob, srun, submit

pytestmark = pytest.mark.timeout(600)  # they wait for Slurm, most of the time

STEP = ["srun", "-K0", "-W0", "--no-kill", "--ntasks-per-node=1"]


def step_ends(job: SlurmJob) -> int:
    (job.steps_dir / "done").touch()
    assert job.step is not None
    return job.step.wait(PATIENCE_S)


def test_two_jobs_share_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    jobs = [
        srun(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path / name, srun=["-w", "node-[1-2]"]) for name in ("a", "b")
    ]
    for job in jobs:
        assert [worker.host for worker in job.wait_for_steps(0, 2)] == ["node-1", "node-2"]
    assert [step_ends(job) for job in jobs] == [0, 0]
    jobs[0].assert_nothing_left()


def test_steps_of_one_job_are_runs_of_their_own(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = write(tmp_path, "import os; print('world', os.environ['WORLD_SIZE'])")
    step = " ".join([*STEP, *ROBUST_RUN, "--no-warm", script])
    number = slurm.sbatch(f"{step}; {step} --x=1", "-N2", "-c2", f"--output={tmp_path}/out", f"--chdir={tmp_path}")
    slurm.wait_state(number, "COMPLETED")
    assert (tmp_path / "out").read_text().count("world 2") >= 4  # more if a busy machine made an attempt fail
    runs = sorted(path.parent.name for path in tmp_path.glob("robust-runs/*/journal.jsonl"))
    assert runs == [f"slurm-{number}.0", f"slurm-{number}.1"]


def test_each_task_of_an_array_is_a_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = write(tmp_path, "import os; print('world', os.environ['WORLD_SIZE'])")
    job = submit(slurm, script, tmp_path=tmp_path, sbatch=["--array=0-1", "-N2"])
    logs = [job.log_dir / f"slurm-{job.number}_{task}.out" for task in (0, 1)]
    wait_for(
        lambda: all(log.exists() and log.read_text().count("world 2") >= 2 for log in logs), "both tasks", PATIENCE_S
    )
    runs = sorted(path.parent.name for path in job.log_dir.glob("*/journal.jsonl"))
    assert runs == [f"slurm-{job.number}_{task}.0" for task in (0, 1)]


def test_excluded_nodes_are_left_alone(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = srun(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, srun=["-N3", "--exclude=node-[1-4]"])
    assert {worker.host for worker in job.wait_for_steps(0, 3)} < {f"node-{number}" for number in range(5, 9)}
    assert step_ends(job) == 0


def test_several_tasks_on_a_node_are_told_the_right_line(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = write(tmp_path, "raise SystemExit('it ran')")
    process = slurm.start(["srun", "-N2", "--ntasks-per-node=2", *ROBUST_RUN, script], cwd=tmp_path)
    assert process.wait(PATIENCE_S) == 2
    assert process.err.count("the step has 4 tasks on 2 nodes") == 1
    assert "srun -N2 -n2 --ntasks-per-node=1 robust-run" in process.err
    assert "it ran" not in process.err


def test_the_other_nodes_hear_from_the_first_one_that_it_cannot_start_the_job(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    write(tmp_path, TRAIN)
    # The first node waits a moment only for the others to come: they begin before it.
    others = "until [ -e began-1 ] && [ -e began-2 ]; do sleep 0.1; done; sleep 1; cd /"
    elsewhere = f': > began-$SLURM_NODEID; test $SLURM_NODEID = 0 && {{ {others}; }}; exec "$@"'
    step = [*STEP, "-N3", "sh", "-c", elsewhere, "sh", *ROBUST_RUN, "train.py"]
    process = slurm.start(step, cwd=tmp_path, env={"TEST_STEPS": str(tmp_path)})
    assert process.wait(PATIENCE_S) != 0
    assert process.err.count("the first node, cannot start the job: ") == 2


def test_a_node_that_cannot_start_the_job_ends_the_wait_of_the_others(slurm: SlurmCluster, tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    elsewhere = 'test $SLURM_NODEID = 2 && cd /; exec "$@"'
    step = [*STEP, "-N3", "sh", "-c", elsewhere, "sh", *ROBUST_RUN, "train.py"]
    process = slurm.start(step, cwd=tmp_path, env={"TEST_STEPS": str(tmp_path)})
    assert process.wait(PATIENCE_S) != 0
    assert process.err.count("1 of 3 nodes cannot start the job, which needs 3") >= 1, process.err


def test_a_container_without_scontrol_trains_and_says_what_it_cannot(slurm: SlurmCluster, tmp_path: Path) -> None:
    # What a container shows of a machine: the interpreter, and none of Slurm's commands.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("env", "sh"):
        (tools / name).symlink_to(f"/bin/{name}")
    inside = tmp_path / "inside"
    inside.write_text(f'#!/bin/sh\nPATH={tools}\nexport PATH\nexec {sys.executable} "$@"\n')
    inside.chmod(0o755)
    job = srun(slurm, write(tmp_path, TRAIN), tmp_path=tmp_path, srun=["-N2"], python=str(inside))
    job.wait_for_steps(0, 2)
    job.wait_said("there is no scontrol here")
    assert step_ends(job) == 0


def test_the_doctor_likes_this_site(slurm: SlurmCluster, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = slurm.run(*ROBUST, "slurm", "doctor", "--nodes", "8", cwd=tmp_path, env={"PATH": path}, timeout_s=300)
    assert "ok        TCP between 8 nodes" in said
    assert f"ok        {tmp_path}: shared by 8 nodes" in said
    assert "ok        SlurmdTimeout=6 sec" in said
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_sees_a_node_that_others_cannot_reach(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm["node-2"].cut_from(slurm["node-3"])
    process = slurm.start(
        [*ROBUST, "slurm", "doctor", "--nodes", "3", "--srun=--nodelist=node-[1-3]"], cwd=tmp_path, name="doctor"
    )
    assert process.wait(300) == 1
    assert "bad       node-2 to node-3; node-3 to node-2: no TCP connection" in process.out


@pytest.fixture
def other_names(tmp_path: Path) -> Iterator[SlurmCluster]:
    need_slurm()
    with SlurmCluster(tmp_path, 3, names=["gpu-a01", "gpu-b7", "login-old"]) as cluster:
        yield cluster


def test_nodes_whose_names_are_not_their_hosts_find_each_other(other_names: SlurmCluster, tmp_path: Path) -> None:
    job = srun(other_names, write(tmp_path, TRAIN), tmp_path=tmp_path, srun=["-N3"])
    assert {worker.host for worker in job.wait_for_steps(0, 3)} == {"node-1", "node-2", "node-3"}
    assert set(job.layout(0)) == {"gpu-a01", "gpu-b7", "login-old"}
    assert step_ends(job) == 0
