"""What this machine has for a job of several roles: GPUs, CPUs, and whether they are short."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from robust_run.orchestrator.model.spec import MANY
from robust_run.orchestrator.rules.labels import of_component
from robust_run.slurm.rules.types import SlurmStep

#: Where Slurm speaks of GPUs.
_GPU_VARIABLES = ("SLURM_GPUS", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class NodeHas(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has for members."""

    devices: int = 0
    cpus: int = MANY
    labels: tuple[str, ...] = ()


ALL_THERE_IS = NodeHas()


def node_has(env: Mapping[str, str], labels: tuple[str, ...], step: SlurmStep | None) -> NodeHas:
    """Return what this machine gives to the job: under Slurm what the step has here, elsewhere all there is.

    `labels`: those of --node-label. A component of a heterogeneous job that has no GPUs may run on a machine that has: they are
    others'. Where Slurm says nothing of GPUs to any node, the site does not hand them out.
    """
    if step is None:
        return NodeHas(devices=devices(env), cpus=len(os.sched_getaffinity(0)), labels=labels)
    is_told = step.gpus or step.het_size or any(name.startswith(_GPU_VARIABLES) for name in env)
    return NodeHas(
        devices=step.gpus if is_told else devices(env),
        cpus=step.cpus or len(os.sched_getaffinity(0)),
        labels=labels if step.het_group is None else (*labels, of_component(step.het_group)),
    )


#: Share of a minute in which some task waited for a CPU.
STARVED_PERCENT = 60.0


def devices(env: Mapping[str, str]) -> int:
    """Return how many GPUs this machine gives to the job."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip()])
    try:
        return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))
    except OSError:
        return 0


def is_starved() -> bool:
    """Whether this machine is short of CPU: who waits may wait for that.

    Tasks waited for a CPU for a large share of the last minute (pressure stall information of the kernel), or, where the kernel
    does not say, twice as many want to run as can.
    """
    try:
        with open("/proc/pressure/cpu", "rb") as file:
            words = file.readline().split()
        return float(words[2].partition(b"=")[2]) >= STARVED_PERCENT
    except (OSError, IndexError, ValueError):
        return os.getloadavg()[1] > 2 * (os.cpu_count() or 1)
