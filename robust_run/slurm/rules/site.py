"""What a site's Slurm is like, judged for jobs that are to outlive their nodes. Pure: text in, findings out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

OLDEST = (20, 11)
"""The first version with `srun --overlap`."""
MEASURED = (22, 5)
"""The oldest version that all this was tried with."""
MOST_LINES = 5000


class SiteFinding(msgspec.Struct, frozen=True):
    """One line of what the doctor says. ok: as jobs need it. warning: they work, with what is advised. bad: they do not.

    no answer: nothing is known, which is not ok either.
    """

    kind: Literal["ok", "warning", "bad", "no answer"]
    what: str
    """The thing and its value: `WaitTime=30`."""
    advice: str = ""
    """What follows, and what to do."""

    def __str__(self) -> str:
        return f"{self.kind:<9} {self.what}{': ' if self.advice else ''}{self.advice}"


def read_config(text: str) -> dict[str, str]:
    """Return the settings in what `scontrol show config` says; lines that are none are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines()[:MOST_LINES]:
        name, equals, value = line.partition("=")
        if equals and name.strip().replace("_", "").isalnum():
            found.setdefault(name.strip(), value.strip())
    return found


def read_version(text: str) -> tuple[int, int] | None:
    """Return year and month of `slurm 22.05.8`, None for a text without."""
    match = re.search(r"\b(\d{2})\.(\d{2})\b", text[:200])
    return (int(match[1]), int(match[2])) if match else None


def judge_version(text: str) -> SiteFinding:
    """Judge what `sbatch --version` says."""
    version, what = read_version(text), f"Slurm {text.rpartition(' ')[2][:40]}"
    if version is None:
        return SiteFinding(
            "warning", f"version {text[:40]!r}", "not understood; robust-run is made for Slurm 20.11 and later"
        )
    if version < OLDEST:
        return SiteFinding(
            "bad", what, "older than 20.11: srun has no --overlap, and steps end with any of their nodes"
        )
    if version < MEASURED:
        return SiteFinding(
            "warning",
            what,
            "older than 22.05, the oldest that robust-run was tried with; test the loss of a node first",
        )
    return SiteFinding("ok", what)


def judge_config(config: Mapping[str, str]) -> list[SiteFinding]:
    """Judge the settings that matter, a finding each; one that is not said is left out."""
    return [judge(name, config[name]) for name, judge in _JUDGES.items() if name in config]


def seconds(value: str) -> int | None:
    """Return the number of `300 sec`; None for INFINITE and the like."""
    match = re.match(r"(\d{1,9})(?:\s|$)", value)
    return int(match[1]) if match else None


def _wanted(is_so: Callable[[str], bool], otherwise: str) -> Callable[[str, str], SiteFinding]:
    """Return what judges a setting that is fit, or else wants something done about it."""
    return lambda name, value: (
        SiteFinding("ok", f"{name}={value}") if is_so(value) else SiteFinding("warning", f"{name}={value}", otherwise)
    )


def _wait_time(name: str, value: str) -> SiteFinding:
    if seconds(value) == 0:
        return SiteFinding("ok", f"{name}=0")
    return SiteFinding(
        "warning", f"{name}={value}", "a step is ended so long after its first task; give -W0 to srun (submit does)"
    )


def _slurmd_timeout(name: str, value: str) -> SiteFinding:
    limit_s = seconds(value)
    if limit_s == 0:
        return SiteFinding(
            "warning",
            f"{name}=0",
            "Slurm never notices that a node is dead: a requeued job may get it again; ask for 300",
        )
    return SiteFinding(
        "ok", f"{name}={value}", "until then Slurm itself does not notice a dead node; robust-run does after 4 s"
    )


def _kill_wait(name: str, value: str) -> SiteFinding:
    limit_s = seconds(value)
    if limit_s is None or limit_s >= 20:
        return SiteFinding("ok", f"{name}={value}")
    return SiteFinding(
        "warning",
        f"{name}={value}",
        f"{limit_s} s from SIGTERM to SIGKILL: checkpoint earlier, with robust-run --warn-before",
    )


def _task_plugin(name: str, value: str) -> SiteFinding:
    if "none" in value or value == "(null)":
        return SiteFinding("ok", f"{name}={value}")
    return SiteFinding("ok", f"{name}={value}", "tasks are bound to CPUs; give --cpu-bind=none to srun (submit does)")


def _preempt(name: str, value: str) -> SiteFinding:
    modes = {part.strip().upper() for part in value.split(",")}
    if "SUSPEND" in modes:
        return SiteFinding(
            "warning",
            f"{name}={value}",
            "a job of several nodes that was suspended goes on from its last checkpoint; ask for REQUEUE",
        )
    if "CANCEL" in modes:
        return SiteFinding(
            "warning",
            f"{name}={value}",
            "jobs that make room are not put back into the queue; submit them again by hand",
        )
    return SiteFinding("ok", f"{name}={value}")


def _authentication(_: str, value: str) -> SiteFinding:
    match = re.search(r"cred_expire=(\d{1,6})", value)
    wait_s = int(match[1]) if match else 120
    return SiteFinding("ok", f"cred_expire={wait_s}", f"a requeued job starts again after {wait_s} s at the earliest")


def _user_signal(name: str, value: str) -> SiteFinding:
    if "preempt_send_user_signal" in value:
        return SiteFinding(
            "ok", f"{name}=preempt_send_user_signal", "the signal of --signal replaces the SIGTERM of a preemption"
        )
    return SiteFinding("ok", f"{name}={value[:60]}")


_JUDGES: dict[str, Callable[[str, str], SiteFinding]] = {
    "KillOnBadExit": _wanted(
        lambda value: value == "0", "one task that fails ends the whole step; give -K0 to srun (submit does)"
    ),
    "WaitTime": _wait_time,
    "JobRequeue": _wanted(
        lambda value: value == "1", "jobs are not put back into the queue; give --requeue to sbatch (submit does)"
    ),
    "MpiDefault": _wanted(
        lambda value: value in ("none", "(null)"),
        "steps start MPI's helpers, and some fail without them; give --mpi=none (submit does)",
    ),
    "SlurmdTimeout": _slurmd_timeout,
    "KillWait": _kill_wait,
    "TaskPlugin": _task_plugin,
    "ProctrackType": _wanted(
        lambda value: "pgid" not in value, "processes that leave their group outlive a job; ask for proctrack/cgroup"
    ),
    "PreemptMode": _preempt,
    "AuthInfo": _authentication,
    "SlurmctldParameters": _user_signal,
}
