"""Which run directory a requeued job's step goes on with. Slurm may number the steps of the new start from where the old one was.

Among the runs of the job those of the same command count, in the order of their steps: the first that no step of this start has
taken. Node 0 takes it by a file in it; the other nodes come to the same one, and need only know whether it is done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import msgspec

from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.journal import JournalHeader
from robust_run.slurm.rules.types import SlurmStep

LARGEST_HEADER = 4 << 20
MOST_RUNS = 10_000


class SlurmRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory of this job and command."""

    name: str
    order: tuple[int, int]
    """Number of its step, and of its turn in that."""
    taken_by: str = ""
    """The step of this start that has taken it."""


def find(spec: JobSpec, name: str, step: SlurmStep) -> str:
    """Return the name of the run that this step goes on with, empty if there is none. Takes it, on the first node."""
    if spec.log_dir is None:
        return ""
    return find_in(spec.log_dir, name, step, lambda folder: command_of(folder) == spec.argv)


def find_in(log_dir: str, name: str, step: SlurmStep, is_same: Callable[[str], bool]) -> str:
    """Do the same among runs of which `is_same`, given their folder, says that they are of this job."""
    try:
        names = os.listdir(log_dir)[:MOST_RUNS]
    except OSError:
        return ""
    mark = f"taken-{step.restart}"
    runs = []
    for each, order in ordered(names, name, step):
        folder = os.path.join(log_dir, each)
        if is_same(folder):
            runs.append(SlurmRun(name=each, order=order, taken_by=_text(os.path.join(folder, mark))))
    chosen = choose(runs, step.step)
    if chosen and step.node_id == 0:
        _write(os.path.join(log_dir, chosen, mark), step.step)
    return chosen


def ordered(names: list[str], name: str, step: SlurmStep) -> list[tuple[str, tuple[int, int]]]:
    """Return the names of this job's runs with their order. Pure. `name` is what a new run of this step would be called."""
    job, suffix = f"slurm-{step.known_as}", name.removeprefix(step.name)
    if not name.startswith(step.name):
        return [(name, (0, 0))] if name in names else []  # --run-id
    pattern = re.compile(rf"{re.escape(job)}(?:\.(\d{{1,9}}))?{re.escape(suffix)}(?:-(\d{{1,3}}))?")
    found = ((each, pattern.fullmatch(each)) for each in names)
    runs = [(each, (int(match[1] or 0), int(match[2] or 0))) for each, match in found if match is not None]
    return sorted(runs, key=lambda run: run[1])


def choose(runs: list[SlurmRun], step: str) -> str:
    """Return the name of the run that is a step's: what it has taken, else the first that is free. Pure."""
    mine = [run.name for run in runs if run.taken_by == step and step]
    free = [run.name for run in runs if not run.taken_by]
    return next(iter((*mine, *free)), "")


def command_of(folder: str) -> tuple[str, ...] | None:
    """Return what the workers of a run were started as, None if there is no journal of one."""
    try:
        with open(os.path.join(folder, "journal.jsonl"), "rb") as file:
            return msgspec.json.decode(file.readline(LARGEST_HEADER), type=JournalHeader).job.argv
    except (OSError, msgspec.MsgspecError):
        return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _write(path: str, step: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{step or 'batch'}\n")
    except OSError:
        return  # then another step of the same command may take it for its own too
