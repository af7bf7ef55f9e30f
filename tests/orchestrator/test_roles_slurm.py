"""What nodes of a step of Slurm are to a job of several roles. On a real Slurm: tests/launcher/slurm/test_cluster_roles.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robust_run.errors import UserError
from robust_run.launcher.start.options.command import parse
from robust_run.orchestrator.journal import Journal
from robust_run.orchestrator.machine import node_has
from robust_run.orchestrator.meeting import with_slurm
from robust_run.orchestrator.nodes.under_slurm import run_of
from robust_run.orchestrator.roles_file import parse as parse_roles
from robust_run.orchestrator.rules import labels
from robust_run.slurm.rules.types import SlurmStep

HERE = len(os.sched_getaffinity(0))


def step(**more: object) -> SlurmStep:
    """Return a step of two nodes, as its second task sees it."""
    known = {"job": "7", "step": "0", "nodes": ("rr1", "rr2"), "node_id": 1, "node_name": "rr2", "tasks": 2}
    return SlurmStep(**{**known, **more})  # type: ignore[arg-type]


def test_a_node_has_what_the_step_has_there() -> None:
    has = node_has({"CUDA_VISIBLE_DEVICES": "2,3"}, (), step(gpus=2, cpus=12))
    assert (has.devices, has.cpus, has.labels) == (2, 12, ())
    assert node_has({}, ("fast",), None).cpus == HERE


def test_nodes_of_a_component_have_its_label_beside_those_that_were_given() -> None:
    assert node_has({}, ("fast",), step(het_size=2, het_group=1)).labels == ("fast", "het-1")
    assert node_has({}, ("fast",), step(het_size=2)).labels == ("fast",)


def test_a_component_without_gpus_does_not_take_those_that_the_machine_has() -> None:
    seen = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert node_has(seen, (), step(het_size=2, het_group=1)).devices == 0
    assert node_has({"SLURM_JOB_GPUS": "0", **seen}, (), step()).devices == 0
    assert node_has(seen, (), None).devices == 2


def test_labels_are_words_separated_by_commas() -> None:
    assert labels.parse("gpu, fast,gpu,") == ("gpu", "fast")
    for text in ("a b", "-x", "x" * 64, ",".join(f"l{number}" for number in range(17))):
        with pytest.raises(UserError, match="--node-label"):
            labels.parse(text)


def test_a_label_without_roles_is_a_mistake() -> None:
    with pytest.raises(UserError, match=r"--node-label .* needs --roles"):
        parse(["--node-label", "gpu", "train.py"], {})
    assert parse(["--node-label", "gpu", "--roles", "r.toml"], {}).node_label == "gpu"


def test_several_tasks_on_a_node_are_refused_with_the_right_line() -> None:
    options = parse(["--roles", "r.toml"], {})
    with pytest.raises(
        UserError, match=r"4 tasks on 2 nodes.*srun -N2 -n2 --ntasks-per-node=1 robust-run --roles FILE"
    ):
        with_slurm(options, step(tasks=4), {})
    with pytest.raises(UserError, match=r"srun --het-group=0-1 --ntasks-per-node=1 robust-run --roles FILE"):
        with_slurm(options, step(tasks=4, het_size=2, het_nodes=(1, 1)), {})
    alone = parse(["--roles", "r.toml", "--standalone"], {})
    assert with_slurm(alone, step(tasks=4), {}) == (alone, "")


@pytest.mark.parametrize("more", [{"nodes": ("rr1",)}, {"nodes": ("rr1",), "het_nodes": (1, 1), "het_size": 2}])
def test_a_batch_script_that_forgot_srun_is_told(more: dict[str, object]) -> None:
    batch = step(step="", node_id=0, node_name="rr1", tasks=1, **more)
    env = {} if more.get("het_size") else {"SLURM_JOB_NUM_NODES": "2"}
    with pytest.raises(UserError, match="the job has 2 nodes, and without srun"):
        with_slurm(parse(["--roles", "r.toml"], {}), batch, env)


def test_the_first_node_of_the_first_component_leads() -> None:
    first = step(node_id=0, node_name="rr1", nodes=("127.0.0.1", "rr2"), het_size=2, het_group=0, het_nodes=(1, 1))
    options, name = with_slurm(parse(["--roles", "r.toml"], {}), first, {})
    assert (name, options.nnodes, options.rdzv_conf) == ("rr1", "2", "is_host=1")


def kept(folder: Path, name: str, text: str) -> None:
    """Leave a run of these roles."""
    (folder / name).mkdir(parents=True)
    Journal(str(folder / name), parse_roles(text), print).close()


ROLES = '[roles.a]\ncommand = "a.py"\n'


def test_a_requeued_job_finds_its_run_and_no_other(tmp_path: Path) -> None:
    options, roles = parse(["--roles", "r.toml"], {}), parse_roles(ROLES)
    first, again = step(node_id=0), step(node_id=0, restart=1)
    assert run_of(options, roles, first, str(tmp_path)) == ("slurm-7.0", False)
    assert run_of(options, roles, again, str(tmp_path)) == ("slurm-7.0", False), "its first start came to nothing"
    kept(tmp_path, "slurm-7.0", ROLES)
    assert run_of(options, roles, again, str(tmp_path)) == ("slurm-7.0", True)
    assert run_of(options, roles, first, str(tmp_path)) == ("slurm-7.0-2", False), "typed again in an interactive step"
    assert run_of(options, roles, step(step="1", node_id=0), str(tmp_path)) == ("slurm-7.1", False)


def test_another_file_of_roles_is_another_run(tmp_path: Path) -> None:
    options, again = parse(["--roles", "r.toml"], {}), step(node_id=0, restart=1)
    kept(tmp_path, "slurm-7.0", ROLES)
    changed = parse_roles(ROLES + "nproc = 2\n")
    assert run_of(options, changed, again, str(tmp_path)) == ("slurm-7.0-2", False)


def test_two_steps_of_a_requeued_job_take_their_own_runs(tmp_path: Path) -> None:
    options, roles = parse(["--roles", "r.toml"], {}), parse_roles(ROLES)
    for name in ("slurm-7.0", "slurm-7.1"):
        kept(tmp_path, name, ROLES)
    one, two = (step(step=number, node_id=0, restart=1) for number in ("0", "1"))
    assert run_of(options, roles, one, str(tmp_path)) == ("slurm-7.0", True)
    assert run_of(options, roles, two, str(tmp_path)) == ("slurm-7.1", True)
    other_node = step(step="1", node_id=1, restart=1)
    assert run_of(options, roles, other_node, str(tmp_path)) == ("slurm-7.1", True)
