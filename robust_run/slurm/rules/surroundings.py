"""From the environment of a task to what it says (`SlurmStep`). Pure: nothing is asked of Slurm or of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robust_run.errors import UserError
from robust_run.slurm.rules.hostlist import expand
from robust_run.slurm.rules.types import SlurmStep

SWITCH = "ROBUST_SLURM"
"""off: robust-run does not look at Slurm's variables."""
OUTER = "ROBUST_SLURM_STEP"
"""Set for workers: the step they run in. Who finds its own there was started by a worker, and is no task."""

RESERVED = 0xFFFFFFF0
"""Numbers from here on mean no step of srun's: a batch script (...291), an interactive shell (...290), none (...294)."""
_LONGEST_NUMBER = 10
MOST_COMPONENTS = 128
"""Of a heterogeneous job."""

_OFF = ("off", "0", "no", "false")


def is_off(env: Mapping[str, str]) -> bool:
    """Whether the user does not want Slurm's variables to be looked at. Raises UserError for a switch that says neither."""
    value = env.get(SWITCH, "").strip().lower()
    if value not in ("", "on", "1", "yes", "true", "auto", *_OFF):
        raise UserError(f"{SWITCH}={value!r} is neither on nor off")
    return value in _OFF


def read(env: Mapping[str, str]) -> SlurmStep | None:
    """Return the step this process is a task of, None outside of one. Raises UserError for variables that contradict each other.

    On a login node inside `salloc` there is a job and no node of it; that is not inside.
    """
    job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or ""
    if not job or is_off(env) or not _is_number(job):
        return None
    step = _step(env)
    node_name = env.get("SLURMD_NODENAME", "")
    if not step:
        return _batch(env, job, node_name) if node_name else None
    if env.get(OUTER) == f"{job}.{step}":
        return None
    nodes = expand(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
    count = _number(env, "SLURM_STEP_NUM_NODES", len(nodes))
    node_id = _number(env, "SLURM_NODEID", 0)
    if not nodes:
        nodes = (node_name,) if node_name else ()
    if count != len(nodes) or not 0 <= node_id < len(nodes):
        raise UserError(
            f"SLURM_STEP_NODELIST has {len(nodes)} nodes, SLURM_STEP_NUM_NODES says {count} and SLURM_NODEID {node_id}; "
            f"they were changed on the way here: start robust-run with srun, or set {SWITCH}=off"
        )
    if node_name and node_name != nodes[node_id]:
        raise UserError(
            f"node {node_id} of SLURM_STEP_NODELIST is {nodes[node_id]}, and SLURMD_NODENAME says {node_name}: robust-run cannot"
            " tell which node is the first; give --rdzv-backend c10d --rdzv-endpoint HOST:PORT --nnodes N"
            f" and {SWITCH}=off"
        )
    return SlurmStep(
        job=job,
        array=array_of(env),
        step=step,
        nodes=nodes,
        node_id=node_id,
        node_name=node_name or nodes[node_id],
        task=_number(env, "SLURM_PROCID", 0),
        tasks=_number(env, "SLURM_STEP_NUM_TASKS", len(nodes)),
        restart=_number(env, "SLURM_RESTART_COUNT", 0),
        gpus=gpus_of(env),
        end_unix_s=_end(env),
        cpus=_number(env, "SLURM_CPUS_ON_NODE", 0),
        **_component(env, node_name or nodes[node_id]),
    )


def _component(env: Mapping[str, str], node_name: str) -> dict[str, Any]:
    """Return what is said of a heterogeneous job. Its components share no node.

    A step of several components is one: it has one number, one list of nodes in the order of the components, and nodes and tasks
    are counted through it, whatever the order in `--het-group`. SLURM_JOB_ID is the first component's everywhere (Slurm 22.05).
    """
    size = _number(env, "SLURM_HET_SIZE", 0)
    if not 0 < size <= MOST_COMPONENTS:
        return {}
    lists = [expand(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "")) for number in range(size)]
    group = next((number for number, names in enumerate(lists) if node_name in names), None)
    return {"het_size": size, "het_group": group, "het_nodes": tuple(map(len, lists))}


def nodes_of_job(env: Mapping[str, str]) -> int:
    """Return how many nodes the allocation has; 1 where that is not said."""
    return _number(env, "SLURM_JOB_NUM_NODES", _number(env, "SLURM_NNODES", 1))


def _batch(env: Mapping[str, str], job: str, node_name: str) -> SlurmStep | None:
    if env.get(OUTER) == f"{job}.":
        return None
    return SlurmStep(
        job=job,
        array=array_of(env),
        nodes=(node_name,),
        node_id=0,
        node_name=node_name,
        restart=_number(env, "SLURM_RESTART_COUNT", 0),
        gpus=gpus_of(env),
        end_unix_s=_end(env),
        cpus=_number(env, "SLURM_CPUS_ON_NODE", 0),
        **_component(env, node_name),
    )


def array_of(env: Mapping[str, str]) -> str:
    """Return `ARRAYJOB_TASK` of a task of a job array, empty for other jobs."""
    job, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    return f"{job}_{task}" if _is_number(job) and _is_number(task) else ""


def _step(env: Mapping[str, str]) -> str:
    """Return the number of the step, empty if there is none. It becomes a part of file names, so it must be one."""
    text = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    if text and not _is_number(text):
        raise UserError(f"SLURM_STEP_ID={text[:40]!r} is no number; start robust-run with srun, or set {SWITCH}=off")
    return text if not text or int(text) < RESERVED else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER


def gpus_of(env: Mapping[str, str]) -> int:
    """Return the GPUs that a task may use: those it sees, else those Slurm says it has."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS"):
        value = env.get(name)
        if value is not None:
            listed = [part for part in value.split(",") if part.strip() not in ("", "-1", "NoDevFiles")]
            return len(listed)
    return _number(env, "SLURM_GPUS_ON_NODE", 0)


def _end(env: Mapping[str, str]) -> float | None:
    """SLURM_JOB_END_TIME, which Slurm sets since 23.02: seconds since the epoch."""
    text = env.get("SLURM_JOB_END_TIME", "")
    seconds = float(text) if text.isdecimal() and len(text) < 12 else 0.0
    return seconds or None


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not _is_number(text) or len(text) > 9:
        raise UserError(f"{name}={text[:40]!r} is no number; start robust-run with srun, or set {SWITCH}=off")
    return int(text)
