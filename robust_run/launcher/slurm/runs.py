"""Which run a step goes on with after a requeue: Slurm may count on and give the steps of the second start other numbers.

The first start of job 7 has run `slurm-7.0`. In the second its step may be 7.0 again, or 7.1, or 7.5. So a step takes the
first run of its job that has the same command and that no other step of this start has taken. Its first node takes it, by
making a file that only one can make; the others read there which it was.
"""

from __future__ import annotations

import os
import time

import msgspec

from robust_run.launcher.journal import Header
from robust_run.launcher.slurm.types import Step
from robust_run.launcher.types import JobSpec

MOST_RUNS = 1000
LONGEST_HEADER_BYTES = 1 << 22
#: How long the first node may take. Shared folders of networks show a new file late.
PATIENCE_S = 15.0
LOOK_EVERY_S = 0.05


def earlier_run(folder: str, step: Step, spec: JobSpec, patience_s: float = PATIENCE_S) -> str:
    """Return the name of the run to go on with; the step's own name if there is none.

    `folder` has the runs. Waits for the first node if there is a run to take.
    """
    runs = same_runs(folder, step, spec)
    give_up_at_s = time.monotonic() + patience_s
    while runs:
        for name in runs:
            taken_by = take(os.path.join(folder, name), step)
            if taken_by == step.step:
                return name
        if step.node_id == 0 or time.monotonic() >= give_up_at_s:
            break
        time.sleep(LOOK_EVERY_S)
    return step.name


def same_runs(folder: str, step: Step, spec: JobSpec) -> list[str]:
    """Return the runs of this job that have the same command, in the order of their steps."""
    prefix = step.name.rpartition(".")[0] + "."
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
    except OSError:
        return []
    names.sort(key=lambda name: int(name[len(prefix) :]))
    return [name for name in names[:MOST_RUNS] if _is_same(os.path.join(folder, name, "journal.jsonl"), spec)]


def take(run: str, step: Step) -> str:
    """Take a run if this is the first node of its step and nobody has it; return the step that has it, "" if none does."""
    path = os.path.join(run, f"restart-{step.restart}")
    if step.node_id == 0:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError:
            pass
        else:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(step.step)
            return step.step
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(32)
    except OSError:
        return ""


def _is_same(journal: str, spec: JobSpec) -> bool:
    try:
        with open(journal, "rb") as file:
            job = msgspec.json.decode(file.readline(LONGEST_HEADER_BYTES), type=Header).job
    except (OSError, msgspec.MsgspecError):
        return False
    return (job.script, job.argv[1:]) == (spec.script, spec.argv[1:])  # the interpreter may be another node's
