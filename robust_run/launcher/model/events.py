"""Input events of the job state machine; its outputs are in `actions`. No behaviour.

Times are seconds of the controller's monotonic clock (`_at_s`); what an agent reports in its own time is rebased on the way.
Ranks are global. A node is named by the id of its agent (`NodeInfo.id`) unless a field says `name`.
"""

from __future__ import annotations

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.model.check_events import CheckEvent, ReplayStepped
from robust_run.launcher.model.code_events import CodeEvent, CodeLacking, NotFinite, StepsSurvived
from robust_run.launcher.model.health_events import HealthEvent
from robust_run.launcher.model.job import Progress, RankEvidence, Rung
from robust_run.launcher.model.node_events import JobEvent
from robust_run.launcher.model.resume_events import (
    CheckpointSaved,
    Damage,
    MemoryNeeds,
    MemoryReady,
    ResumeEvent,
    SavedCheckpoint,
    Source,
)
from robust_run.tracer.types import TraceVerdict

# --- events: an attempt on its nodes --------------------------------------------------------------------------------


class StoreOpened(msgspec.Struct, frozen=True, tag="store_opened", kw_only=True):
    """The node of rank 0 listens for the workers of an attempt."""

    attempt: int
    node: str
    address: str
    """What workers get as MASTER_ADDR."""
    port: int


class AttemptStarted(msgspec.Struct, frozen=True, tag="attempt_started", kw_only=True):
    """Every worker of an attempt on one node has been started."""

    attempt: int
    node: str = ""
    pids: tuple[int, ...]
    """By local rank."""
    port: int
    """Where the workers' store listens."""
    how: tuple[Rung, ...] = ()
    """By local rank: how it was started (see `agent.warm.ladder`)."""
    why: str = ""
    """Why not by a higher rung, for the first rank that was not promoted."""
    nccl: str = ""
    """Whether NCCL is traced, and why not, where that is news (see `agent.nccl.arming`)."""
    resumes_s: float | None = None
    """When the checkpoint was made that its ranks were told to go on from (--ckpt-dir), seconds since the epoch."""
    resumes_step: int | None = None
    resumes_uuid: str = ""
    """Of its manifest, and the name of its folder; both empty: they start from the beginning, or were told of none."""
    resumes_name: str = ""
    resumes_source: Source = ""
    """Where that lies; empty with a name: in storage, as older agents say it."""


class RankExited(msgspec.Struct, frozen=True, tag="rank_exited", kw_only=True):
    """A worker's process ended before its node was told to end the attempt."""

    attempt: int
    rank: int
    exit_code: int
    finding: Finding | None = None
    """What its stderr says so far."""
    had_ended: bool = False
    """It died of a signal when its program had come to its end, while its interpreter cleaned up."""


class SpawnFailed(msgspec.Struct, frozen=True, tag="spawn_failed", kw_only=True):
    """A worker, or the store, could not be started; workers before it may run."""

    attempt: int
    rank: int
    message: str
    node: str = ""


class StoreLost(msgspec.Struct, frozen=True, tag="store_lost", kw_only=True):
    """The process that hosts the workers' TCPStore is gone or could not start."""

    attempt: int
    detail: str
    node: str = ""


class FirstStep(msgspec.Struct, frozen=True, tag="first_step", kw_only=True):
    """A rank of this node made the first optimizer step of the attempt."""

    attempt: int
    node: str = ""
    at_s: float


class HangSuspected(msgspec.Struct, frozen=True, tag="hang_suspected", kw_only=True):
    """A rank of this node has been waiting for its peers for longer than is usual in this job."""

    attempt: int
    node: str = ""
    rank: int
    waited_s: float
    after_s: float = 0.0
    """How long it may: what is usual in this job, with a margin."""
    reason: str = ""
    """Why else to look at all ranks, as a clause: what NCCL completes has become slow."""
    number: int = 0
    """Counts the long waits of this node in the attempt, from 1: a wait that goes on is reported again. 0: it is no wait."""


class WaitOver(msgspec.Struct, frozen=True, tag="wait_over", kw_only=True):
    """No rank of this node waits any more as it did when that was suspected, or its ranks make steps nevertheless."""

    attempt: int
    node: str = ""
    number: int
    """Of the wait, and of those before it: see `HangSuspected`."""
    at_s: float


class Inquired(msgspec.Struct, frozen=True, tag="inquired", kw_only=True):
    """What the evidence of all ranks says: that one is at fault, or that nothing is wrong."""

    attempt: int
    verdict: TraceVerdict | None = None
    reason: str = ""
    at_unix_s: float = 0.0


class AttemptEnded(msgspec.Struct, frozen=True, tag="attempt_ended", kw_only=True):
    """No process of the attempt is left on one node, and its output is complete."""

    attempt: int
    node: str = ""
    started_at_s: float
    ranks: tuple[RankEvidence, ...]
    progress: Progress
    fenced_after_s: float | None = None
    """The node ended it by itself, because the controller did not answer for this long."""
    damage: Damage | None = None
    """What the first of its ranks found wrong with the checkpoint that they were told to start from."""
    saved: SavedCheckpoint | None = None
    """The newest that its ranks have saved in the node's folder of checkpoints (--ckpt-dir)."""
    has_sights: bool = False
    """The controller has what ranks of the attempt left behind, and can have it judged. Agents do not say so, it does."""


# --- events: signals, the warm process, time ------------------------------------------------------------------------


class SignalReceived(msgspec.Struct, frozen=True, tag="signal_received", kw_only=True):
    """The job got a signal that ends it, or an operator's stop."""

    signal: int
    again: bool = False
    """The same source sent one before: the user will not wait."""
    by: str = ""
    """Who, where it was no signal."""


class LimitNear(msgspec.Struct, frozen=True, tag="limit_near"):
    """A scheduler's time limit is near, and the job is put back into its queue then: what fails now is not started again here."""

    near: bool = True
    """False: the limit was moved."""


class WarmReady(msgspec.Struct, frozen=True, tag="warm_ready", kw_only=True):
    """The warm process can be forked from now on."""

    pid: int
    modules: tuple[str, ...]
    took_s: float
    skipped: tuple[str, ...] = ()
    node: str = ""


class WarmRefused(msgspec.Struct, frozen=True, tag="warm_refused", kw_only=True):
    """The warm process cannot be forked (any more); workers are spawned."""

    reason: str
    module: str = ""
    """The preloaded module that did it; it is tried again without."""
    node: str = ""


class StandbyWaits(msgspec.Struct, frozen=True, tag="standby_ready", kw_only=True):
    """A standby worker waits to be promoted."""

    slot: int
    pid: int
    node: str = ""


class SignalPassedOn(msgspec.Struct, frozen=True, tag="signal_passed_on", kw_only=True):
    """An agent got a signal that is the workers' business (SIGUSR1, SIGUSR2)."""

    signal: int
    ranks: tuple[int, ...]
    """Those whose program has a handler for it; the others would have died of it and were spared."""
    node: str = ""


class GuardLost(msgspec.Struct, frozen=True, tag="guard_lost"):
    """The process the user started was killed; a job of one node must not outlive it."""


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """A time the core asked to be woken at has come."""


Event = (
    JobEvent
    | StoreOpened
    | AttemptStarted
    | RankExited
    | SpawnFailed
    | StoreLost
    | FirstStep
    | HangSuspected
    | WaitOver
    | Inquired
    | AttemptEnded
    | CodeEvent
    | HealthEvent
    | CheckEvent
    | ResumeEvent
    | SignalReceived
    | LimitNear
    | SignalPassedOn
    | WarmReady
    | WarmRefused
    | StandbyWaits
    | GuardLost
    | Tick
)

NodeEvent = (
    SignalReceived
    | LimitNear
    | StoreOpened
    | AttemptStarted
    | RankExited
    | SpawnFailed
    | StoreLost
    | FirstStep
    | HangSuspected
    | WaitOver
    | AttemptEnded
    | StepsSurvived
    | NotFinite
    | CodeLacking
    | CheckpointSaved
    | MemoryReady
    | MemoryNeeds
    | HealthEvent
    | ReplayStepped
    | SignalPassedOn
    | WarmReady
    | WarmRefused
    | StandbyWaits
)
"""What an agent reports. Reporting one twice changes nothing."""
