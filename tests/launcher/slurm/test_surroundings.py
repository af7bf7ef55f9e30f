"""What a task learns from its environment."""

from __future__ import annotations

import pytest
from slurm_tasks import batch_env, task_env

from robust_run.errors import UserError
from robust_run.slurm.rules.ports import COUNT, FIRST, ports_of
from robust_run.slurm.rules.scrub import for_srun, without_binding
from robust_run.slurm.rules.surroundings import nodes_of_job, read
from robust_run.slurm.rules.types import SlurmStep


def step_of(**changes: str) -> SlurmStep:
    step = read(task_env(**changes))
    assert step is not None
    return step


def test_a_task_knows_its_nodes_its_place_and_its_name() -> None:
    step = step_of()
    assert step.nodes == ("rr1", "rr2", "rr3", "rr4")
    assert (step.node_id, step.node_name, step.task, step.tasks, step.restart) == (1, "rr2", 1, 4, 0)
    assert step.name == "slurm-41.0"


def test_a_step_on_some_of_the_job_s_nodes_counts_its_own() -> None:
    step = step_of(SLURM_STEP_NODELIST="rr[2,4]", SLURM_STEP_NUM_NODES="2", SLURM_STEP_NUM_TASKS="2", SLURM_NODEID="0")
    assert step.nodes == ("rr2", "rr4")
    assert step.node_id == 0


def test_a_task_of_an_array_is_named_after_the_array_and_asks_for_its_own_job() -> None:
    step = step_of(SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="7")
    assert (step.job, step.name) == ("41", "slurm-40_7.0")


def test_a_requeued_job_keeps_its_name_and_gets_other_ports() -> None:
    first, second = step_of(), step_of(SLURM_RESTART_COUNT="1")
    assert first.name == second.name
    assert second.restart == 1
    assert not set(ports_of(first)) & set(ports_of(second))


def test_all_nodes_of_a_step_have_the_same_ports_and_other_steps_have_others() -> None:
    one, other = step_of(), step_of(SLURM_NODEID="3", SLURMD_NODENAME="rr4")
    assert ports_of(one) == ports_of(other)
    assert ports_of(one) != ports_of(step_of(SLURM_STEP_ID="1"))
    assert ports_of(one) != ports_of(step_of(SLURM_JOB_ID="42"))
    assert len(set(ports_of(one))) == len(ports_of(one))
    assert all(FIRST <= port < FIRST + COUNT for port in ports_of(one))


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, 0),
        ({"SLURM_STEP_GPUS": "0,1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"CUDA_VISIBLE_DEVICES": "3", "SLURM_STEP_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
    ],
)
def test_the_gpus_of_the_step_are_those_the_task_sees(changes: dict[str, str], gpus: int) -> None:
    assert step_of(**changes).gpus == gpus


def test_outside_of_slurm_there_is_no_step() -> None:
    assert read({"PATH": "/usr/bin"}) is None


def test_a_login_shell_of_salloc_is_no_step() -> None:
    assert read(batch_env(SLURMD_NODENAME="")) is None


def test_a_batch_script_without_srun_is_a_step_of_its_node_alone() -> None:
    step = read(batch_env())
    assert step is not None
    assert (step.step, step.nodes, step.tasks, step.name) == ("", ("rr1",), 1, "slurm-41")
    assert nodes_of_job(batch_env()) == 4


@pytest.mark.parametrize("number", ["4294967290", "4294967291", "4294967294"])
def test_the_numbers_that_slurm_gives_what_is_no_step_of_sruns_are_none(number: str) -> None:
    step = read(batch_env(SLURM_STEP_ID=number))
    assert step is not None
    assert (step.step, step.name) == ("", "slurm-41")
    assert read(batch_env(SLURM_STEP_ID=number, ROBUST_SLURM_STEP="41.")) is None


@pytest.mark.parametrize("job", ["../../x", "4" * 300, "\u0663", "-1"])
def test_a_job_whose_number_is_none_is_none(job: str) -> None:
    assert read(task_env(SLURM_JOB_ID=job)) is None
    assert step_of(SLURM_ARRAY_JOB_ID=job, SLURM_ARRAY_TASK_ID="1").name == "slurm-41.0"


def test_robust_slurm_off_means_that_nothing_is_looked_at() -> None:
    assert read(task_env(ROBUST_SLURM="off")) is None
    with pytest.raises(UserError, match="neither on nor off"):
        read(task_env(ROBUST_SLURM="maybe"))


def test_a_launcher_that_a_worker_starts_is_no_task_but_in_a_step_of_its_own_it_is() -> None:
    assert read(task_env(ROBUST_SLURM_STEP="41.0")) is None
    assert read(task_env(ROBUST_SLURM_STEP="41.0", SLURM_STEP_ID="3")) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_NODEID": "4"},
        {"SLURM_STEP_NUM_NODES": "3"},
        {"SLURM_NODEID": "x"},
        {"SLURM_NODEID": "2"},
        {"SLURM_STEP_NODELIST": "rr[1-"},
        {"SLURM_STEP_ID": "../../x"},
        {"SLURM_STEP_ID": "9" * 300},
        {"SLURM_STEP_ID": "\u0663"},
        {"SLURM_STEP_ID": "", "SLURM_STEPID": "1/../.."},
    ],
)
def test_variables_that_contradict_each_other_are_said(changes: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        read(task_env(**changes))
    assert "\n" not in str(caught.value)


def test_workers_do_not_inherit_what_binds_an_inner_srun() -> None:
    env = without_binding(
        task_env(SLURM_CPU_BIND="quiet,mask_cpu:0x1", SLURM_CPU_BIND_TYPE="mask_cpu:", SLURM_DISTRIBUTION="cyclic")
    )
    assert not [name for name in env if "BIND" in name or "DIST" in name]
    assert env["SLURM_PROCID"] == "1"


def test_an_srun_of_ours_inherits_nothing_of_the_step_but_where_slurm_is() -> None:
    env = for_srun(task_env(SRUN_DEBUG="3", SBATCH_REQUEUE="1", ROBUST_SLURM_STEP="41.0", PMIX_RANK="0"))
    assert env == {"PATH": "/usr/bin", "HOME": "/home/ada", "SLURM_CONF": "/etc/slurm/slurm.conf"}


HET = {
    "SLURM_HET_SIZE": "3",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "rr1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "rr[2-3]",
    "SLURM_JOB_NODELIST_HET_GROUP_2": "rr[4-5]",
    "SLURM_CPUS_ON_NODE": "7",
}


def test_a_task_of_a_heterogeneous_job_knows_its_component() -> None:
    step = step_of(**HET)
    assert (step.het_size, step.het_group, step.het_nodes, step.cpus) == (3, 1, (1, 2, 2), 7)
    assert step_of(**HET, SLURM_NODEID="0", SLURMD_NODENAME="rr1").het_group == 0
    assert (step_of().het_size, step_of().het_group, step_of().cpus) == (0, None, 1)


@pytest.mark.parametrize("size", ["0", "129", "999999999"])
def test_a_number_of_components_that_cannot_be_means_none(size: str) -> None:
    assert step_of(**{**HET, "SLURM_HET_SIZE": size}).het_group is None


def test_a_node_that_no_component_names_is_of_none() -> None:
    step = step_of(SLURM_HET_SIZE="2")
    assert (step.het_group, step.het_nodes) == (None, (0, 0))
