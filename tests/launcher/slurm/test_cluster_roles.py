"""Jobs of several roles on a real Slurm: the step's nodes are the job's, and no other option is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import script, wait_for
from role_jobs import FILE, ROLLOUT, TRAINER
from slurm_cluster import SlurmCluster
from slurm_jobs import PATIENCE_S, ROBUST, ROBUST_RUN

from robust_run.slurm.rules.hostlist import expand

pytestmark = pytest.mark.timeout(600)  # they wait for Slurm, most of the time


def started(folder: Path) -> list[tuple[str, list[str]]]:
    """Return which launcher of which member was started where, so far."""
    found = []
    for path in folder.glob("robust-runs/*/roles.jsonl"):
        for line in path.read_bytes().split(b"\n")[1:-1]:
            for action in json.loads(line).get("actions", ()):
                if action["type"] == "start_member":
                    member = action["member"]
                    found.append((f"{member['role']}-{member['index']}.{action['serial']}", action["nodes"]))
    return found


def write(folder: Path, count: int) -> None:
    script(folder, TRAINER.replace("COUNT", str(count)), "trainer.py")
    script(folder, ROLLOUT, "rollout.py")
    (folder / "roles.toml").write_text(FILE % "")


def test_roles_are_spread_over_the_nodes_of_a_step(slurm: SlurmCluster, tmp_path: Path) -> None:
    write(tmp_path, 30)
    process = slurm.start(["srun", "-N2", "--ntasks-per-node=1", *ROBUST_RUN, "--roles", "roles.toml"], cwd=tmp_path)
    assert process.wait(PATIENCE_S) == 0, process.err
    assert sorted(json.loads((tmp_path / "history").read_text()), key=int) == [str(number) for number in range(30)]
    nodes = {name for _, names in started(tmp_path) for name in names}
    assert nodes == {"node-1", "node-2"}
    assert "is done: trainer is done" in process.err


def test_each_component_of_a_heterogeneous_job_runs_the_roles_that_name_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    write(tmp_path, 30)
    roles = (FILE % "devices = 1").replace("members = 2", 'members = 2\nwhere = "het-1"\ncpus = 1')
    (tmp_path / "roles.toml").write_text(roles)
    sbatch = ["--gpus-per-node=1", ":", "-N2", "-c2"]
    command = [*ROBUST_RUN, "--roles", "roles.toml"]
    said = slurm.run(*ROBUST, "slurm", "submit", *sbatch, "--", *command, cwd=tmp_path)
    job = int(said.split()[2])
    log = tmp_path / f"robust-runs/slurm-{job}.out"
    slurm.wait_state(job, "COMPLETED", "FAILED", "CANCELLED")
    assert sorted(json.loads((tmp_path / "history").read_text()), key=int) == [str(number) for number in range(30)]
    gpu, others = (set(expand(slurm.job(f"{job}+{number}")["NodeList"])) for number in (0, 1))
    where = started(tmp_path)
    assert {name for member, names in where for name in names if member.startswith("trainer")} == gpu, log.read_text()
    assert {name for member, names in where for name in names if member.startswith("rollout")} == others


def test_a_label_that_no_node_has_is_said_at_once_on_all_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    write(tmp_path, 30)
    (tmp_path / "roles.toml").write_text(FILE % 'where = "het-3"')
    process = slurm.start(["srun", "-N2", "--ntasks-per-node=1", *ROBUST_RUN, "--roles", "roles.toml"], cwd=tmp_path)
    assert process.wait(PATIENCE_S) == 2, process.err
    assert process.err.count("no node has the label 'het-3'") == 1
    assert not list(tmp_path.glob("ran-*"))


def test_a_node_that_loses_power_gives_its_members_to_the_others(slurm: SlurmCluster, tmp_path: Path) -> None:
    write(tmp_path, 30)
    (tmp_path / "hold").touch()
    step = ["srun", "-N3", "-K0", "-W0", "--no-kill", "--ntasks-per-node=1", *ROBUST_RUN, "--roles", "roles.toml"]
    process = slurm.start(step, cwd=tmp_path)
    wait_for(lambda: len(list(tmp_path.glob("ran-*"))) == 3, f"all members: {process.err}", PATIENCE_S)
    where = dict(started(tmp_path))
    lost = next(name for names in where.values() for name in names if name != "node-1")
    slurm[lost].power_off()
    moved = {name.replace(".1", ".2") for name, names in where.items() if names == [lost]}
    wait_for(lambda: moved <= {name for name, _ in started(tmp_path)}, f"{moved} elsewhere: {process.err}", PATIENCE_S)
    (tmp_path / "hold").unlink()
    wait_for((tmp_path / "history").exists, f"the trainer's end: {process.err}", PATIENCE_S)
    process.wait(PATIENCE_S)
    assert sorted(json.loads((tmp_path / "history").read_text()), key=int) == [str(number) for number in range(30)]
    assert {name for each, names in started(tmp_path) for name in names if each in moved}.isdisjoint({lost})
