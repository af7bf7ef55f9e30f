"""The folder in memory that programs save into (--ckpt-memory-dir). Decides only; imported where it was asked for."""

from __future__ import annotations

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.world import World, absolute


def with_memory_dir(spec: JobSpec, path: str, world: World) -> JobSpec:
    """Return a job with the folder. Raises UserError where there can be none."""
    if not path or "://" in path:
        raise UserError(f"--ckpt-memory-dir {path!r}: must be a folder of this machine, empty or absent")
    if spec.many is not None:
        raise UserError(
            f"--ckpt-memory-dir {path}: for jobs of one node, as no other would see files in the memory of this one; "
            "use robust_run.checkpoint, or a --ckpt-dir that all nodes share"
        )
    if spec.image is not None:
        raise UserError(
            f"--ckpt-memory-dir {path}: cannot be used with --image: save with robust_run.checkpoint, or to --ckpt-dir"
        )
    if spec.ckpt_dir is not None and "://" in spec.ckpt_dir:
        raise UserError(
            f"--ckpt-memory-dir {path}: cannot be used with --ckpt-dir {spec.ckpt_dir}: give a folder of this machine, or save "
            "with robust_run.checkpoint, which saves to URLs"
        )
    return msgspec.structs.replace(spec, ckpt_memory_dir=absolute(path, world), saves_plain_files=True)
