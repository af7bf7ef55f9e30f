"""How the job ended, for those who only see `srun`: it fails if any of its tasks was lost, also where another one took its place.

A batch script learns it from a file that it names in `ROBUST_SLURM_EXIT_FILE` and has made; people are told in a line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from robust_run.launcher.model.job import JobSpec
from robust_run.slurm.past import Past, past_of
from robust_run.slurm.rules.types import SlurmStep
from robust_run.terminal import plain

VARIABLE = "ROBUST_SLURM_EXIT_FILE"
"""A file that is there; robust-run writes the job's exit code into it, and makes none."""
MOST_WRITING = 16
"""Nodes that do so, the first ones: some may be lost, and all say the same."""
MOST_NAMES = 8


def leave_word(spec: JobSpec, step: SlurmStep, env: Mapping[str, str]) -> None:
    """Say how the job ended, where that is on record."""
    path = env.get(VARIABLE, "")
    if spec.log_dir is None or step.node_id >= MOST_WRITING or (spec.many is None and not path):
        return
    past = past_of(os.path.join(spec.log_dir, spec.run_id), step.restart)
    if past is None or past.finish is None:
        return
    if path:
        _write(path, past.finish.exit_code)
    elif text := sentence(past, step):
        print(f"robust-run: {plain(text)}", file=sys.stderr, flush=True)


def sentence(past: Past, step: SlurmStep) -> str:
    """Return what is to be said of srun's exit code, by the first node that is left; empty if there is nothing. Pure."""
    failed = [name for name in past.ended if name in step.nodes]
    first = next((name for name in step.nodes if name not in failed), "")
    if past.finish is None or past.finish.outcome != "done" or not failed or step.node_name != first:
        return ""
    names = ", ".join(failed[:MOST_NAMES]) + (
        f" and {len(failed) - MOST_NAMES} more" if len(failed) > MOST_NAMES else ""
    )
    return (
        f"the job is done; srun may end with 137 or another error nevertheless, for what was lost on the way: {names}"
    )


def leave_code(exit_code: int, env: Mapping[str, str]) -> None:
    """Say how a job ended whose record is not a launcher's."""
    if path := env.get(VARIABLE, ""):
        _write(path, exit_code)


def _write(path: str, exit_code: int) -> None:
    with suppress(OSError), open(path, "r+", encoding="ascii") as file:
        file.write(f"{exit_code}\n")
        file.truncate()
