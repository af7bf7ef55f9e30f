"""The environment of a worker: what torchrun 2.13 sets, and three variables of ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.launcher.types import JobSpec


def worker_environment(  # noqa: PLR0913 - each is one fact of the attempt
    spec: JobSpec,
    base: Mapping[str, str],
    *,
    local_rank: int,
    attempt: int,
    master_addr: str,
    master_port: int,
    agent_hosts_store: bool,
    error_file: str,
    run_dir: str,
) -> dict[str, str]:
    """Return the complete environment of one worker on a one-node job, where local and global ranks are the same."""
    world = str(spec.nproc)
    rank = str(local_rank)
    env = dict(base)
    env.update(
        RANK=rank,
        LOCAL_RANK=rank,
        GROUP_RANK="0",
        ROLE_RANK=rank,
        ROLE_NAME=spec.role,
        WORLD_SIZE=world,
        LOCAL_WORLD_SIZE=world,
        GROUP_WORLD_SIZE="1",
        ROLE_WORLD_SIZE=world,
        MASTER_ADDR=master_addr,
        MASTER_PORT=str(master_port),
        TORCHELASTIC_RESTART_COUNT=str(attempt),
        TORCHELASTIC_MAX_RESTARTS=str(spec.max_restarts),
        TORCHELASTIC_RUN_ID=spec.rdzv_id,
        TORCHELASTIC_USE_AGENT_STORE=str(agent_hosts_store),
        TORCHELASTIC_ERROR_FILE=error_file,
        ROBUST_JOB=spec.run_id,
        ROBUST_RUN_DIR=run_dir,
    )
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if spec.omp_threads_defaulted:
        env.setdefault("OMP_NUM_THREADS", "1")
    if spec.end_signals:
        env.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", _signal_names(spec.end_signals))
    if spec.virtual_local_rank:
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = _one_device(base.get("CUDA_VISIBLE_DEVICES"), local_rank)
    return env


def _one_device(visible: str | None, local_rank: int) -> str:
    """Return the one device of this rank, out of those the launcher itself may see."""
    devices = [device.strip() for device in visible.split(",") if device.strip()] if visible else []
    return devices[local_rank] if local_rank < len(devices) else str(local_rank)


def _signal_names(numbers: tuple[int, ...]) -> str:
    from robust_run.signals import signal_name

    return ",".join(signal_name(number) for number in numbers)


def worker_argv(spec: JobSpec, local_rank: int) -> tuple[str, ...]:
    """Return the worker's command line: torchrun's `${local_rank}` macro filled in, everything else untouched."""
    return tuple(word.replace("${local_rank}", str(local_rank)) for word in spec.argv)
