"""The environment of a worker: what torchrun 2.13 sets, and a few variables of ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.model.code_events import CodeUse
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.launcher.model.resume_events import ResumePoint

if TYPE_CHECKING:
    from robust_run.launcher.model.actions import StartAttempt


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an attempt's world that one node has."""

    attempt: int
    address: str
    """Of the workers' store."""
    port: int
    first_rank: int = 0
    group_rank: int = 0
    world_size: int
    nodes: int = 1
    code: CodeUse | None = None
    """The version that all its workers run; None: what is in the user's folder."""
    resume: ResumePoint | None = None
    """Where its ranks start from; None: the job has no folder of checkpoints."""
    resume_path: str = ""
    """The same as a path of this node; empty: from the beginning."""
    memory_folder: str = ""
    """Where workers find the keeper of what they save in memory; empty: there is none."""
    fetched: str = ""
    """Where workers find what is fetched of it ahead; empty: nothing is."""
    mounted: str = ""
    """Folder in which workers see the checkpoints of the job's URL as files; empty: nowhere."""
    leave: tuple[str, ...] = ()
    """Uuids of checkpoints that --ckpt-keep is not to remove, nor to count."""
    replay_steps: int = 0
    """It is a replay of so many steps; 0: it is none."""


def place_of(
    order: StartAttempt, resume_path: str = "", memory_folder: str = "", fetched: str = "", mounted: str = ""
) -> RankPlace:
    """Return the place of the node that an order is for. `resume_path`: where the node has what the ranks start from."""
    placement = order.placements[0]
    return RankPlace(
        attempt=order.attempt,
        code=order.code,
        resume=order.resume,
        resume_path=resume_path,
        memory_folder=memory_folder,
        fetched=fetched,
        mounted=mounted,
        leave=order.leave,
        replay_steps=order.replay_steps,
        address=order.address,
        port=order.port,
        first_rank=placement.first_rank,
        group_rank=placement.group_rank,
        world_size=order.world_size,
        nodes=order.nodes,
    )


def worker_environment(
    spec: JobSpec,
    base: Mapping[str, str],
    *,
    local_rank: int,
    place: RankPlace,
    agent_hosts_store: bool,
    error_file: str,
    run_dir: str,
    reports: str = "",
) -> dict[str, str]:
    """Return the complete environment of one worker. `reports`: folder of what workers say of their training."""
    world = str(place.world_size)
    rank = str(place.first_rank + local_rank)
    env = without_outer_nccl(base)
    for secret in ("ROBUST_TOKEN", "ROBUST_NOTIFY"):  # who has the one may steer the job: not the program's business
        env.pop(secret, None)
    env.update(
        RANK=rank,
        LOCAL_RANK=str(local_rank),
        GROUP_RANK=str(place.group_rank),
        ROLE_RANK=rank,
        ROLE_NAME=spec.role,
        WORLD_SIZE=world,
        LOCAL_WORLD_SIZE=str(spec.nproc),
        GROUP_WORLD_SIZE=str(place.nodes),
        ROLE_WORLD_SIZE=world,
        MASTER_ADDR=place.address,
        MASTER_PORT=str(place.port),
        TORCHELASTIC_RESTART_COUNT=str(place.attempt),
        TORCHELASTIC_MAX_RESTARTS=str(spec.max_restarts),
        TORCHELASTIC_RUN_ID=spec.rdzv_id,
        TORCHELASTIC_USE_AGENT_STORE=str(agent_hosts_store),
        TORCHELASTIC_ERROR_FILE=error_file,
        ROBUST_JOB=spec.run_id,
        ROBUST_RUN_DIR=run_dir,
    )
    if env.get("ROBUST_REPORT") != "off":
        env["ROBUST_REPORT"] = f"{reports}/rank_{rank}.report" if reports and spec.sensors else ""
    env.pop("ROBUST_TURNS", None)  # what the launcher and its helpers fetch is none of the program's
    env.pop("ROBUST_REPLAY", None)
    env.pop("ROBUST_REPLAY_STEPS", None)
    if place.replay_steps:  # see docs/ladder.md: it is not to save anything
        env.update(ROBUST_REPLAY="1", ROBUST_REPLAY_STEPS=str(place.replay_steps))
    _tell_of_checkpoints(env, base, spec, place)
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if spec.omp_threads_defaulted:
        env.setdefault("OMP_NUM_THREADS", "1")
    if spec.end_signals:
        env.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", _signal_names(spec.end_signals))
    if spec.slurm is not None:
        env["ROBUST_WARNING_FILE"] = warning_file(run_dir, spec.slurm)
    if spec.virtual_local_rank:
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = _one_device(base.get("CUDA_VISIBLE_DEVICES"), local_rank)
    return env


_OF_CHECKPOINTS = ("ROBUST_CKPT_MEMORY", "ROBUST_CKPT_MEMORY_DIR", "ROBUST_CKPT_FETCHED", "ROBUST_CKPT_MOUNTED")
_RESUME = ("ROBUST_RESUME", "ROBUST_RESUME_STEP", "ROBUST_RESUME_OWN")


def _tell_of_checkpoints(env: dict[str, str], base: Mapping[str, str], spec: JobSpec, place: RankPlace) -> None:
    """Set where a worker starts from, and where it saves."""
    for name in _OF_CHECKPOINTS:  # another job's
        env.pop(name, None)
    if base.get("ROBUST_JOB", spec.run_id) != spec.run_id:  # started by a worker of another job, which was told its own
        for name in ("ROBUST_CKPT_DIR", "ROBUST_CKPT_EVERY", "ROBUST_CKPT_KEEP", *_RESUME):
            env.pop(name, None)
    if spec.ckpt_memory is not None:
        env["ROBUST_CKPT_MEMORY"] = place.memory_folder or "off"
    told = {
        "ROBUST_CKPT_MOUNTED": place.mounted,
        "ROBUST_CKPT_MEMORY_DIR": spec.ckpt_memory_dir,
        "ROBUST_CKPT_DIR": spec.ckpt_dir,
        "ROBUST_CKPT_EVERY": spec.ckpt_every,
        "ROBUST_CKPT_KEEP": spec.ckpt_keep,
    }
    env.update({name: value for name, value in told.items() if value})
    env.pop("ROBUST_CKPT_LEAVE", None)
    if place.leave:
        env["ROBUST_CKPT_LEAVE"] = ",".join(place.leave)
    if spec.ckpt_dir is not None or spec.ckpt_memory or place.resume is not None:
        for name in _RESUME:  # another job's
            env.pop(name, None)
    if place.resume is not None and place.resume_path:
        _tell_of_resume(env, spec, place, place.resume)


def _tell_of_resume(env: dict[str, str], spec: JobSpec, place: RankPlace, point: ResumePoint) -> None:
    env["ROBUST_RESUME"] = _seen_at(place, spec)
    if place.fetched:
        env["ROBUST_CKPT_FETCHED"] = place.fetched
    if point.step is not None:
        env["ROBUST_RESUME_STEP"] = str(point.step)
    if point.is_own:
        env["ROBUST_RESUME_OWN"] = "1"


def _seen_at(place: RankPlace, spec: JobSpec) -> str:
    """Return what a worker is to start from: where it is mounted, its files."""
    if not place.mounted or "://" not in place.resume_path:
        return place.resume_path
    from robust_run.ckpt_io.address import split

    root, name = split(place.resume_path)
    return f"{place.mounted}/{name}" if root == spec.ckpt_dir else place.resume_path


def warning_file(run_dir: str, slurm: SlurmUse) -> str:
    """Return the file that appears when the job is about to be ended; another one after each requeue."""
    return f"{run_dir}/warning-{slurm.restart}-{slurm.node_id}.json"


def without_outer_nccl(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a launcher without what the tracing of NCCL put there, for a job inside a worker of another."""
    result = dict(env)
    if result.pop("ROBUST_NCCL_TRACE", None) is not None:
        for name in ("NCCL_PROFILER_PLUGIN", "NCCL_RAS_ADDR"):
            result.pop(name, None)
    return result


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
