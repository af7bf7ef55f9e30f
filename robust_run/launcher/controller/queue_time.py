"""Queue time of a job, as Slurm tells it. Asking it may take seconds: never on the way to a worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from robust_run.report.startup.types import SchedulerQueue

#: How long `scontrol` may take.
ASK_S = 10.0
_LARGEST_ANSWER = 1 << 20


def ask(env: Mapping[str, str]) -> SchedulerQueue | None:
    """Return what Slurm says of the job that this environment is in; None outside of one, or where it does not answer."""
    job = env.get("SLURM_JOB_ID", "")
    if not job.isdecimal() or env.get("SLURM_STEP_ID", "0") not in ("0", "4294967291", "4294967290"):
        return None  # a later step of the job: what came before it is no matter of this launcher
    program = shutil.which("scontrol", path=env.get("PATH"))
    if program is None:
        return from_environment(env)
    try:
        process = subprocess.Popen(
            [program, "--oneliner", "show", "job", _task_of_array(env) or job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**env, "SLURM_TIME_FORMAT": "standard"},
            start_new_session=True,
        )
    except (OSError, ValueError):
        return from_environment(env)
    try:
        out, _ = process.communicate(timeout=ASK_S)
    except subprocess.TimeoutExpired:
        from robust_run.launcher.agent.workers.process_tree import end_group

        end_group(process)
        return from_environment(env)
    text = out[:_LARGEST_ANSWER].decode("utf-8", "replace") if process.returncode == 0 else ""
    return parse(text) or from_environment(env)


def _task_of_array(env: Mapping[str, str]) -> str:
    array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array.isdecimal() and task.isdecimal() else ""


def parse(text: str) -> SchedulerQueue | None:
    """Return what a line of `scontrol --oneliner show job` says; None if the times are not there. Pure but for the time zone."""
    fields = dict(word.partition("=")[::2] for word in text.split())
    started_s = _unix_s(fields.get("StartTime", ""))
    known = [at_s for name in ("SubmitTime", "EligibleTime") if (at_s := _unix_s(fields.get(name, ""))) is not None]
    if started_s is None or not known:
        return None
    return SchedulerQueue(
        eligible_unix_s=min(max(known), started_s),
        started_unix_s=started_s,
        is_batch=fields.get("BatchFlag") == "1" and fields.get("Restarts", "0") == "0",
    )


def from_environment(env: Mapping[str, str]) -> SchedulerQueue | None:
    """Return what the variables of a step say, which know no time of submission: only a batch script's part."""
    text = env.get("SLURM_JOB_START_TIME", "")
    if not text.isdecimal() or not 0 < int(text) < 1 << 40:
        return None
    return SchedulerQueue(eligible_unix_s=float(text), started_unix_s=float(text))


def _unix_s(text: str) -> float | None:
    """Return the seconds since the epoch of `2026-03-01T12:00:00`, local time as Slurm writes it."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def in_slurm() -> bool:
    """Whether this process is in a job of Slurm."""
    return "SLURM_JOB_ID" in os.environ
