"""Asking Slurm's controller, rarely, and for a few seconds at most. Without `scontrol` there is no answer."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.launcher.agent.workers.process_tree import end_group
from robust_run.slurm.rules.scrub import for_srun
from robust_run.slurm.rules.types import SlurmJobFacts

ANSWER_S = 10.0
"""How long slurmctld may take: it is busy where thousands ask."""
PROGRAM = "scontrol"
LONGEST_ANSWER = 1 << 20

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/.-]*)=(\S*)")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a command of Slurm said."""

    ok: bool
    text: str
    """Its output, or why it has none, as one line."""
    is_missing: bool = False
    """There is no such command here, as in containers."""


def ask(
    arguments: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float = ANSWER_S,
    started: Callable[[int], None] = lambda _pid: None,
) -> Answer:
    """Run `scontrol ARGUMENTS` and return what it says. Never raises for what Slurm does; may block for `timeout_s`.

    `started` is called with the pid of the process.
    """
    clean = {**for_srun(env), "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(ok=False, text="there is no scontrol here", is_missing=True)
    except OSError as error:
        return Answer(ok=False, text=f"scontrol: {error.strerror}")
    started(process.pid)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_group(process)
        return Answer(ok=False, text=f"scontrol: no answer within {timeout_s:g} s")
    except BaseException:
        end_group(process)
        raise
    said = " ".join(err[:2000].decode(errors="replace").split())
    if process.returncode != 0 or (not out.strip() and arguments[0] == "show"):
        return Answer(ok=False, text=said or f"scontrol ended with {process.returncode}")
    return Answer(ok=True, text=out[:LONGEST_ANSWER].decode(errors="replace"))


def is_there(env: Mapping[str, str]) -> bool:
    """Whether `scontrol` can be run here. Starts nothing."""
    return any(
        os.access(os.path.join(folder, "scontrol"), os.X_OK) for folder in env.get("PATH", "").split(":") if folder
    )


def job_facts(
    job: str, env: Mapping[str, str], started: Callable[[int], None] = lambda _pid: None
) -> tuple[SlurmJobFacts | None, Answer]:
    """Return what is known of a job, None without an answer; and the answer."""
    answer = ask(("show", "job", "-o", job), env, started=started)
    return (parse_job(record_of(answer.text, job)) if answer.ok else None), answer


def record_of(text: str, job: str) -> str:
    """Return what an answer of a record a line says of a job itself: the number of an array stands for all its tasks. Pure."""
    return next((line for line in text.splitlines() if line.split(maxsplit=1)[:1] == [f"JobId={job}"]), text)


def fields(text: str) -> dict[str, str]:
    """Return the KEY=VALUE pairs of an answer, the first of each key. A value ends at a blank."""
    found: dict[str, str] = {}
    for key, value in _FIELD.findall(text):
        found.setdefault(key, value)
    return found


def parse_job(text: str) -> SlurmJobFacts:
    """Return the facts in one job's `scontrol show job`. What cannot be read counts as not said. Pure."""
    said = fields(text)
    return SlurmJobFacts(
        state=said.get("JobState", ""),
        # A job without a limit has an EndTime too, a year after its start.
        end_unix_s=parse_time(said.get("EndTime", "")) if said.get("TimeLimit") != "UNLIMITED" else None,
        preempted_unix_s=parse_time(said.get("PreemptTime", "")),
        restarts=int(restarts) if (restarts := said.get("Restarts", "0")).isdecimal() else 0,
        is_batch=said.get("BatchFlag", "0") not in ("", "0"),
        may_requeue=said.get("Requeue", "1") != "0",
        batch_host=said.get("BatchHost", ""),
        excluded=_list(said, "ExcNodeList"),
        required=_list(said, "ReqNodeList"),
    )


def _list(said: Mapping[str, str], name: str) -> str:
    value = said.get(name, "")
    return "" if value == "(null)" else value


def parse_time(text: str) -> float | None:
    """Return seconds since the epoch of a time as `scontrol` writes it, in whichever format; None for Unknown and its like."""
    if text.isdecimal() and len(text) < 12:
        return float(text) or None
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text):
        import time

        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    return None
