"""What a step fills into a command line, and what stays as typed."""

from __future__ import annotations

import pytest
from slurm_tasks import batch_env, task_env

from robust_run.errors import UserError
from robust_run.launcher.records.shared_folders import is_shared
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.options import Options
from robust_run.slurm.rules.fill import Filled, fill, run_name
from robust_run.slurm.rules.ports import ports_of
from robust_run.slurm.rules.surroundings import nodes_of_job, read
from robust_run.slurm.rules.types import SlurmStep


def filled(line: str, *, shared: bool = False, **changes: str) -> tuple[Filled, SlurmStep]:
    env = task_env(**changes)
    step = read(env)
    assert step is not None
    return fill(parse([*line.split(), "train.py"], {}), step, nodes_of_job(env), is_shared=shared), step


def options_of(line: str, *, shared: bool = False, **changes: str) -> Options:
    return filled(line, shared=shared, **changes)[0].options


def test_nothing_needs_to_be_typed() -> None:
    found, step = filled("")
    options = found.options
    assert (options.nnodes, options.standby, options.rdzv_backend) == ("4", "0", "c10d")
    assert options.rdzv_endpoint == f"rr1:{ports_of(step)[0]}"
    assert options.rdzv_id == "slurm-41.0"
    assert options.rdzv_conf == "is_host=0"
    assert options_of("", SLURM_NODEID="0", SLURMD_NODENAME="rr1").rdzv_conf == "is_host=1"
    assert found.meets


def test_workers_are_as_many_as_gpus_and_one_without() -> None:
    assert options_of("").nproc_per_node == "1"
    assert options_of("", SLURM_GPUS_ON_NODE="8").nproc_per_node == "8"
    assert options_of("--nproc-per-node 3", SLURM_GPUS_ON_NODE="8").nproc_per_node == "3"


@pytest.mark.parametrize(("standby", "nnodes"), [("1", "3"), ("3", "1"), ("auto", "4")])
def test_standbys_are_taken_from_the_step(standby: str, nnodes: str) -> None:
    assert options_of(f"--standby {standby}").nnodes == nnodes


def test_as_many_standbys_as_nodes_are_refused() -> None:
    with pytest.raises(UserError, match="nobody would be left"):
        options_of("--standby 4")


def test_a_step_that_is_too_small_is_said_to_be() -> None:
    with pytest.raises(UserError, match=r"--nnodes 5:8: the step has 4 nodes; srun -N6"):
        options_of("--nnodes 5:8 --standby 1")
    assert options_of("--nnodes 2:8").nnodes == "2:8"


def test_the_job_knows_how_many_nodes_the_step_has_whatever_was_typed() -> None:
    assert filled("--nnodes 2:8")[0].use.nodes == 4


def test_a_port_of_its_own_on_each_node_of_a_step_would_be_as_many_jobs() -> None:
    with pytest.raises(UserError, match="each would be a job of its own; leave the option out, or give --standalone"):
        options_of("--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint localhost:0")
    assert options_of("--standalone --rdzv-endpoint localhost:0").standalone


def test_what_is_typed_wins() -> None:
    options = options_of("--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint rr3:29400 --rdzv-id mine --nproc-per-node 2")
    assert (options.nnodes, options.rdzv_endpoint, options.rdzv_id) == ("2:4", "rr3:29400", "mine")
    assert "is_host" not in options.rdzv_conf
    assert options_of("--rdzv-conf join_timeout=5").rdzv_conf == "join_timeout=5,is_host=0"


def test_controllers_stand_by_where_the_run_directory_is_shared() -> None:
    assert options_of("", shared=True).controller_standby == 2
    assert options_of("").controller_standby == 0
    assert options_of("--controller-standby 1", shared=True).controller_standby == 1
    assert options_of("--log-dir /dev/null", shared=True).controller_standby == 0


def test_what_a_sigterm_is_about_is_slurms_to_say() -> None:
    found, _ = filled("--on-sigterm node")
    assert found.options.on_sigterm == "job"
    assert found.notes == ("--on-sigterm node does nothing under Slurm, which says what its SIGTERM is about",)
    assert filled("")[0].notes == ()


def test_one_node_needs_no_meeting_point() -> None:
    one = {"SLURM_STEP_NODELIST": "rr2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
    options = options_of("", **one)
    assert (options.nnodes, options.rdzv_endpoint) == ("1:1", "")


def test_several_tasks_on_a_node_get_the_right_srun_line() -> None:
    with pytest.raises(UserError, match=r"8 tasks on 4 nodes.*srun -N4 -n4 --ntasks-per-node=1 robust-run"):
        options_of("", SLURM_STEP_NUM_TASKS="8", SLURM_TASKS_PER_NODE="2(x4)")


def test_a_batch_script_that_forgot_srun_gets_it() -> None:
    step = read(batch_env())
    assert step is not None
    with pytest.raises(UserError, match=r"has 4 nodes, and without srun .* write srun --ntasks-per-node=1"):
        fill(parse(["train.py"], {}), step, nodes_of_job(batch_env()), is_shared=False)


@pytest.mark.parametrize("line", ["--standalone", "--nnodes 1"])
def test_tasks_that_are_jobs_of_their_own_have_runs_of_their_own(line: str) -> None:
    found, step = filled(line, SLURM_STEP_NUM_TASKS="8")
    assert not found.meets
    assert found.options.rdzv_endpoint == ""
    assert run_name(found.options, step) == "slurm-41.0-task1"


def test_a_run_id_is_kept() -> None:
    found, step = filled("--run-id mine")
    assert run_name(found.options, step) == "mine"
    assert found.options.rdzv_id == "mine"


MOUNTS = """/dev/vda / ext4 rw 0 0
nas:/home /home nfs4 rw 0 0
tmpfs /home/ada/scratch tmpfs rw 0 0
"""


def test_a_folder_is_shared_where_its_file_system_is() -> None:
    assert is_shared("/home/ada/runs", MOUNTS)
    assert not is_shared("/home/ada/scratch/runs", MOUNTS)
    assert not is_shared("/homes/ada", MOUNTS)
    assert is_shared("/data", MOUNTS, "1")
    assert not is_shared("/home/ada", MOUNTS, "0")


def test_a_task_of_an_array_is_called_by_its_place_because_its_number_may_stand_for_all_of_them() -> None:
    use = filled("", SLURM_ARRAY_JOB_ID="41", SLURM_ARRAY_TASK_ID="2")[0].use
    assert (use.job, use.number) == ("41_2", "41")
    assert (filled("")[0].use.job, filled("")[0].use.number) == ("41", "41")
