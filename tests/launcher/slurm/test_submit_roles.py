"""`robust slurm submit` of jobs of several roles: how many nodes they need, and the script of a heterogeneous job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from robust_run.errors import UserError
from robust_run.robust_cli import robust
from robust_run.slurm.rules.role_needs import Component, RoleNeed, component_of, fragile, nodes_for
from robust_run.slurm.rules.sbatch_options import read_options

ROLES = """
[roles.trainer]
command = "train.py"
nproc = 8
nodes = 2
devices = 1
%s

[roles.rollout]
command = "rollout.py"
members = 4
restart = "alone"
devices = 2

[roles.reward]
command = "reward.py"
members = 3
cpus = 8
restart = "alone"
%s
"""


def submitted(folder: Path, *words: str, trainer: str = "", reward: str = "") -> str:
    """Return what --dry-run prints for these options of sbatch, or the refusal."""
    path = folder / "dapo.toml"
    path.write_text(ROLES % (trainer, reward))
    argv = ["slurm", "submit", "--dry-run", *words, "--", "robust-run", "--roles", str(path)]
    result = CliRunner().invoke(robust, argv)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def sbatch_lines(text: str, name: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith(f"#SBATCH --{name}")]


def test_one_allocation_is_as_large_as_the_roles_need(tmp_path: Path) -> None:
    text = submitted(tmp_path, "--gpus-per-node=8", "-c", "32")
    assert sbatch_lines(text, "nodes") == ["--nodes=3"], "two nodes of trainers, one of rollouts, rewards beside them"
    assert sbatch_lines(text, "job-name") == ["--job-name=dapo"]
    assert "#SBATCH hetjob" not in text
    assert "--het-group" not in text


def test_too_few_nodes_are_refused_with_the_number_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--nodes=2: the roles need 3 nodes there; write -N 3"):
        submitted(tmp_path, "-N2", "--gpus-per-node=8", "-c", "32")
    assert "--nodes=5" in submitted(tmp_path, "-N5", "--gpus-per-node=8", "-c", "32")


def test_components_are_components_of_a_heterogeneous_job_and_one_step_runs_on_all(tmp_path: Path) -> None:
    text = submitted(
        tmp_path, "--gpus-per-node=8", "-c16", "-t60", ":", "-c", "16", "-p", "cpu", reward='where = "het-1"'
    )
    assert sbatch_lines(text, "nodes") == ["--nodes=3", "--nodes=2"]
    first, second = text.split("#SBATCH hetjob")
    assert "--partition=cpu" in second
    assert "--gpus-per-node=8" not in second.partition("\n\n")[0]
    assert "#SBATCH --time=60" in first
    step = text.partition("code=0\n")[2].partition(" || code")[0]
    one, two = step.split(" \\\n   : ")
    assert one.startswith('srun --het-group=0 --nodes="$SLURM_JOB_NUM_NODES_HET_GROUP_0"')
    assert two.startswith('--het-group=1 --nodes="$SLURM_JOB_NUM_NODES_HET_GROUP_1"')
    assert ("--gpus-per-node=8" in one, "--gpus-per-node=8" in two) == (True, False)
    assert one.count("robust-run --roles") == two.count("robust-run --roles") == 1
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "trainer", "reward", "said"),
    [
        ([], "", 'where = "het-1"', "no node of the job has that label"),
        (["-N1", ":", "-N9"], "", 'where = "het-2"', "has 2 components, het-0 to het-1"),
        (["-N9", ":", "-N9"], "", 'where = "gpu"', "no node of the job has that label"),
        (["--gpus-per-node=4"], "", "", "needs 8 GPUs on a node for each member, and component 0 has 4"),
        (["-c4"], "", "", "needs 8 CPUs on a node for each member, and component 0 has 4"),
        (["-N9", ":", "--ntasks-per-node=4"], "", 'where = "het-1"', "--ntasks-per-node=4"),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, words: list[str], trainer: str, reward: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        submitted(tmp_path, *words, trainer=trainer, reward=reward)


def test_a_component_of_a_single_node_is_told_to_be_fragile() -> None:
    assert fragile([2, 3]) == fragile([1]) == fragile([]) == fragile([None, 2]) == ""
    assert "component 0, 2 has one node" in fragile([1, 4, 1])


def test_components_are_for_roles(tmp_path: Path) -> None:
    argv = ["slurm", "submit", "--dry-run", "-N1", ":", "-N2", "--", "robust-run", "train.py"]
    assert "for --roles FILE" in str(CliRunner().invoke(robust, argv).exception)


def test_a_label_that_all_nodes_are_given_runs_anywhere() -> None:
    assert nodes_for([RoleNeed(name="a", where="fast", nodes=3)], [Component()], ["fast"]) == (3,)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("--gpus-per-node=8", 8),
        ("--gpus-per-node=h100:4", 4),
        ("--gres=gpu:2", 2),
        ("--gres=gpu:h100:2", 2),
        ("--gres=lustre:1,gpu", 1),
        ("--gres=lustre:1", None),
        ("--gpus=16", None),
        ("-N4", None),
    ],
)
def test_gpus_of_a_node_are_known_from_the_options_that_say_them(words: str, gpus: int | None) -> None:
    assert component_of(read_options([words])).gpus == gpus


def test_a_component_has_a_node_even_if_no_role_is_counted_for_it() -> None:
    assert nodes_for([RoleNeed(name="a", gpus=1)], [Component(), Component(gpus=4)], []) == (1, 1)
