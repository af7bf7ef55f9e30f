"""Environments of tasks as Slurm 22.05 gives them, for tests."""

from __future__ import annotations


def task_env(**changes: str) -> dict[str, str]:
    """Return what the second of four tasks sees, `srun -N4 robust-run`; an empty value takes a variable out."""
    env = {
        "PATH": "/usr/bin",
        "HOME": "/home/ada",
        "SLURMD_NODENAME": "rr2",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CPUS_ON_NODE": "1",
        "SLURM_GTIDS": "1",
        "SLURM_JOBID": "41",
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "rr[1-4]",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_LAUNCH_NODE_IPADDR": "10.77.0.1",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "4",
        "SLURM_NODEID": "1",
        "SLURM_NODELIST": "rr[1-4]",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "1",
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "rr[1-4]",
        "SLURM_STEP_NUM_NODES": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
        "SLURM_SUBMIT_DIR": "/home/ada",
        "SLURM_TASKS_PER_NODE": "1(x4)",
        "SLURM_TOPOLOGY_ADDR": "rr2",
        **changes,
    }
    return {name: value for name, value in env.items() if value}


def batch_env(**changes: str) -> dict[str, str]:
    """Return what a batch script without srun sees."""
    steps = {name: "" for name in task_env() if name.startswith(("SLURM_STEP", "SLURM_STEPID"))}
    first = {"SLURMD_NODENAME": "rr1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    return task_env(**{**first, **steps, **changes})
