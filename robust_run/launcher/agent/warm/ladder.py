"""Start methods of a worker, fastest safe one first: promoted, forked, or spawned; the choice and its reason. Pure.

promote   a standby worker is ready: it becomes the worker in about two milliseconds
fork      the warm process is ready, but no standby is: one is made now and promoted
spawn     a new interpreter: always possible. First attempts are spawned, unless the agent itself comes from a warm process
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from robust_run.launcher.agent.warm.identity import interpreter_arguments
from robust_run.launcher.model.job import JobSpec, Rung

__all__ = ["Rung", "StartChoice", "StartSituation", "choose", "doubt", "tool_that_forbids", "why_never"]

#: Variables of tools that must see a process from its first instruction, each with the words that say so.
TOOLS = {
    "LD_PRELOAD": "a preloaded library",
    "LD_AUDIT": "an audit library",
    "CUDA_INJECTION64_PATH": "a CUDA profiler",
    "NVTX_INJECTION64_PATH": "an NVTX profiler",
    "COVERAGE_PROCESS_START": "coverage",
    "PYTHONINSPECT": "an interactive Python",
    "PYTHONTRACEMALLOC": "tracemalloc",
    "PYTHONPROFILEIMPORTTIME": "an import profile",
}

#: Of a worker that waits with less than it is going to import.
UNREADY = "what the program imports had not all been preloaded yet"

#: Deaths that make one doubt the fork rather than the program: SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE.
SUSPICIOUS_SIGNALS = frozenset({-11, -6, -7, -4, -8})


class StartSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice depends on."""

    attempt: int
    off: str = ""
    """Why nothing may be forked in this job; empty if it may."""
    warm_state: Literal["none", "importing", "ready", "refused"] = "none"
    warm_reason: str = ""
    """Why there is no warm process or it refused."""
    has_standby: bool = False
    doubted: str = ""
    """Why the last forked attempt makes one doubt the fork."""
    is_behind: bool = False
    """The first attempt has said what it imports, and the warm process was not told yet."""
    differs: tuple[str, ...] = ()
    """Variables of this worker that had to be right when the warm process started, and were not."""


class StartChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A rung and why."""

    rung: Rung
    reason: str = ""


def choose(now: StartSituation) -> StartChoice:
    """Return the highest rung that is safe."""
    if now.off:
        return StartChoice(rung="spawn", reason=now.off)
    if now.doubted:
        return StartChoice(rung="spawn", reason=now.doubted)
    if now.differs:
        return StartChoice(
            rung="spawn", reason=f"read at import and different for this worker: {', '.join(now.differs)}"
        )
    unready = UNREADY if now.attempt and (now.is_behind or now.warm_state == "importing") else ""
    if now.has_standby:
        return StartChoice(rung="promote", reason=unready)
    if now.warm_state == "ready":
        return StartChoice(rung="fork", reason="no standby worker was ready" if now.attempt else "")
    if now.warm_state == "importing":
        return StartChoice(rung="spawn", reason="the warm process was still importing")
    return StartChoice(rung="spawn", reason=now.warm_reason or "first attempt")


def why_never(spec: JobSpec, python: str, env: Mapping[str, str]) -> str:
    """Return why no fork of any process can run this job's workers; empty if one can.

    `python` is the interpreter that a warm process would be.
    """
    if spec.image is not None:
        return "workers run in an image"
    if spec.setup is not None:
        return "workers run in an environment with a set-up"
    if not spec.is_python:
        return "the program is not run by a Python of ours"
    if spec.argv[0] != python:
        return f"workers run another Python ({spec.argv[0]})"
    if interpreter_arguments(spec.argv) is None:
        return "the interpreter has flags of its own"
    return tool_that_forbids(env)


def tool_that_forbids(env: Mapping[str, str]) -> str:
    """Return why the environment forbids forked workers, empty if it does not."""
    for name, what in TOOLS.items():
        if env.get(name):
            return f"{name} is set ({what} must see every process from its start)"
    return ""


def doubt(exit_codes: tuple[int | None, ...], was_forked: bool, lived_s: float, progressed: bool) -> str:
    """Return why the next attempt should start from nothing: a forked one crashed early in native code."""
    crashed = [code for code in exit_codes if code in SUSPICIOUS_SIGNALS]
    if not was_forked or progressed or not crashed or lived_s > 60.0:
        return ""
    return f"the forked attempt before was killed by signal {-(crashed[0] or 0)} without progress"


def how_started(daemon_pid: int, choices: Sequence[StartChoice], why: str) -> str:
    """Return what to say of an attempt that an agent from a per-user warm process started."""
    spawned = sum(choice.rung == "spawn" for choice in choices)
    if not spawned:
        return f"started from the warm process (pid {daemon_pid})"
    workers_of_all = "all" if spawned == len(choices) else f"{spawned} of {len(choices)}"
    return (
        f"the warm process (pid {daemon_pid}) was used, but {workers_of_all} workers were started from nothing: {why}"
    )
