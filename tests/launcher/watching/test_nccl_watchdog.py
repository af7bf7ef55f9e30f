"""torch's own watchdog of NCCL stays in place: what the user decided about it, or did not, reaches the workers as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.agent.workers.environment import RankPlace, worker_environment
from robust_run.launcher.model.job import JobSpec, OutputStreams, Std
from robust_run.tracer.files.arming import arm_environment
from robust_run.tracer.sight.ras_port import RasPort

SPEC = JobSpec(
    argv=("python", "train.py"),
    script="train.py",
    is_python=True,
    nproc=2,
    run_id="run",
    rdzv_id="run",
    log_dir="/tmp",
    streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
)
#: torchrun sets this one, too, where the user did not.
TORCHRUNS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
PREFIXES = ("TORCH_NCCL_", "TORCH_FR_", "NCCL_ASYNC_", "NCCL_BLOCKING_")


def environment_of(base: dict[str, str]) -> dict[str, str]:
    """What a traced worker starts with."""
    place = RankPlace(attempt=0, address="127.0.0.1", port=1, world_size=2)
    env = worker_environment(SPEC, base, local_rank=0, place=place, agent_hosts_store=True, error_file="e", run_dir="r")
    env.update(arm_environment(dict(env), "/dev/shm/steps"))
    port = RasPort()
    try:
        env.update(port.variables(base))
    finally:
        port.close()
    return env


def watchdogs(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(PREFIXES)}


NAMES = st.sampled_from(
    [
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_DESYNC_DEBUG",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_ENABLE_TIMING",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_FR_BUFFER_SIZE",
        "NCCL_BLOCKING_WAIT",
    ]
)


@given(st.dictionaries(NAMES, st.text("0123456789", max_size=4)))
def test_no_variable_of_the_watchdog_is_changed_or_taken(base: dict[str, str]):
    assert watchdogs(environment_of(base)) == TORCHRUNS | base


@pytest.mark.parametrize("name", ["NCCL_RAS_ADDR", "NCCL_DEBUG", "NCCL_PROFILER_PLUGIN"])
def test_what_the_user_told_nccl_stays(name: str):
    assert environment_of({name: "mine"})[name] == "mine"
