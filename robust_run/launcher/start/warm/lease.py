"""Messages between `robust-run` and a per-user warm process, one message a packet of a Unix socket. No behaviour.

guard ── TakeJob ────────────────────────► warm process ── forks ──► agent
guard ◄─ Ready ────────────────────────────────────────────────────── agent
guard ── Go + stdin, stdout, stderr, lifeline ──────────────────────► agent, which runs the job
guard ◄─ Ended ────────────────────────────────────────────────────── agent, at its end
guard ◄─ Buried ────────────────────────── warm process, when nothing of the job is left

A job runs once: the agent begins only after Go, and a guard that has said Go never starts another agent. Until then either
may hang up, and the guard goes on as if there were no warm process. The job's streams go to an agent that has just answered,
and not to a warm process that may hang: whoever reads them would wait for their end as long as it does.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.warm.key import Fingerprint


class TakeJob(msgspec.Struct, frozen=True, tag="take_job", kw_only=True):
    """Fork this job's agent."""

    protocol: int
    version: str
    spec: JobSpec
    env: dict[str, str]
    cwd: str
    umask: int
    mask: tuple[int, ...]
    """Signals that workers start with blocked; the guard holds more while it starts."""
    command_line: tuple[str, ...]
    """Of the guard, for those who look at processes."""
    run_path: str
    run_memory: str
    run_temporary: bool
    """The three fields of its `RunDirectory`."""


class AskWarmStatus(msgspec.Struct, frozen=True, tag="ask_status"):
    """How are you?"""


class WarmStatus(msgspec.Struct, frozen=True, tag="status", kw_only=True):
    """The answer of a warm process."""

    idle_s: float
    """Since its last job ended; 0 while one runs."""
    running: tuple[str, ...]
    """Run ids of the jobs that run."""
    served: int
    """Jobs begun so far."""
    differs: str
    """Why it would not take a job from the one who asks, as far as it depends on where that runs; empty if it would."""


class WarmRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The job was not begun."""

    reason: str


class WarmLeaseReady(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The agent exists and waits for Go."""

    pid: int


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Run the job. Its standard streams and the guard's lifeline come along."""


class WarmAgentEnded(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """The job is over; the agent ends now."""

    exit_code: int


class Buried(msgspec.Struct, frozen=True, tag="buried", kw_only=True):
    """The agent is gone, and what it left was ended."""

    exit_code: int
    """As `subprocess` gives it."""
    left: tuple[str, ...] = ()
    """Processes that could not be ended, in words."""


ToWarmProcess = TakeJob | AskWarmStatus
FromWarmProcess = WarmStatus | WarmRefusal | WarmLeaseReady | WarmAgentEnded | Buried


class WarmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a new warm process is told by `robust warm start`."""

    folder: str
    """Where it is announced."""
    name: str
    fingerprint: Fingerprint
    idle_limit_s: float | None
    ends_with_parent: bool
    """Started in the foreground: it must not outlive the command."""


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """The new warm process takes jobs from now on."""
