"""Which of Slurm's variables go on, and which would make a later `srun` or the workers do what nobody asked for. Pure.

`srun` takes its options from variables too, and sets some of them for its tasks: an inner `srun` then binds all its tasks to
the CPUs of one of the outer step, starts on nodes that are gone, or asks for nodes that the job no longer has.
"""

from __future__ import annotations

from collections.abc import Mapping

_BINDING = (
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_VERBOSE",
    "SLURM_MEM_BIND",
    "SLURM_MEM_BIND_LIST",
    "SLURM_MEM_BIND_PREFER",
    "SLURM_MEM_BIND_SORT",
    "SLURM_MEM_BIND_TYPE",
    "SLURM_MEM_BIND_VERBOSE",
    "SLURM_GPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_DIST_PLANESIZE",
    "SLURM_DIST_LLLP",
    "SLURM_HINT",
    "SLURM_THREADS_PER_CORE",
)
_OURS = ("ROBUST_SLURM_STEP", "ROBUST_SLURM_JOIN", "ROBUST_SLURM_EXIT_FILE")
_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_", "PMI2_")
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")


def without_binding(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for workers: what they may want to know of their step stays, what binds an inner srun goes,
    and how this job ends is no matter of theirs."""
    return {name: value for name, value in env.items() if name not in _BINDING and name not in _OURS}


def for_srun(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for an srun of ours, which gets all it is to know by its command line."""
    return {
        name: value for name, value in env.items() if name in _KEPT or not (name.startswith(_PREFIXES) or name in _OURS)
    }
