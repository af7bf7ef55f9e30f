"""Input events of the job state machine; its outputs are in `actions`. No behaviour.

Times are seconds of the controller's monotonic clock (`_at_s`); what an agent reports in its own time is rebased on the way.
Ranks are global. A node is named by the id of its agent (`NodeInfo.id`) unless a field says `name`.
"""

from __future__ import annotations

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.model.check_events import CheckEvent, ReplayStepped
from robust_run.launcher.model.code_events import (
    CodeCaptured,
    CodeLacking,
    NotFinite,
    RollbackAsked,
    StepsSurvived,
    UpdateDue,
    UpdateRefused,
    UpdateStaged,
)
from robust_run.launcher.model.health_events import HealthEvent
from robust_run.launcher.model.job import (
    NodeInfo,
    Progress,
    RankEvidence,
    Rung,
)
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

# --- events: the job and its nodes ----------------------------------------------------------------------------------


class JobStarted(msgspec.Struct, frozen=True, tag="job_started"):
    """The run directory exists; nothing runs yet."""

    restart: int = 0  # see `ControllerResumed`
    hold_s: float = 0.0  # likewise: of a run before it, workers may still live
    needs: int = 0
    """Nodes without which the first attempt does not begin, where those are more than the job's MIN."""


class NodeJoined(msgspec.Struct, frozen=True, tag="node_joined", kw_only=True):
    """An agent connected for the first time, as far as is on record."""

    node: NodeInfo
    attempt: int = -1
    """The newest attempt it was told anything of; -1: none. Where it is one, an earlier controller knew this agent."""


class NodeReturned(msgspec.Struct, frozen=True, tag="node_returned", kw_only=True):
    """An agent connected again. What happened to its attempt meanwhile follows as events of their own."""

    node: str
    attempt: int = -1
    """The newest attempt it was told to start; -1: none."""
    name: str = ""
    """Its host, for readers of a journal that does not say when it joined."""


class NodeLost(msgspec.Struct, frozen=True, tag="node_lost", kw_only=True):
    """An agent has been silent so long that it must have fenced itself: none of its workers runs any more."""

    node: str
    silent_s: float
    """Since the last sign of life."""


class NodeLeft(msgspec.Struct, frozen=True, tag="node_left", kw_only=True):
    """An agent is about to go, in good order; it ends its workers itself."""

    node: str
    reason: str


class NodeToldToLeave(msgspec.Struct, frozen=True, tag="node_told_to_leave", kw_only=True):
    """A node is about to leave because it was told to (`--on-sigterm node`), a moment later: perhaps all nodes are told."""

    node: str
    signal: int


class NodeCannotStart(msgspec.Struct, frozen=True, tag="node_cannot_start", kw_only=True):
    """A node that a scheduler started for this job cannot run it, and ended before it joined."""

    name: str
    reason: str


class NodeEvicted(msgspec.Struct, frozen=True, tag="node_evicted", kw_only=True):
    """A user, or a rule, took a host out of the job: all agents there, now and later."""

    name: str
    reason: str
    by: str = "operator"
    at_unix_s: float = 0.0
    listed: bool = False
    """The list that jobs share has it (`--evict-list`)."""


class NodeReadmitted(msgspec.Struct, frozen=True, tag="node_readmitted", kw_only=True):
    """An evicted host may be used again."""

    name: str
    by: str = "operator"


class RestartAsked(msgspec.Struct, frozen=True, tag="restart_asked", kw_only=True):
    """An operator wants a new attempt."""

    reason: str = ""
    by: str = "operator"


class ControllerResumed(msgspec.Struct, frozen=True, tag="controller_resumed", kw_only=True):
    """A controller continues from the journal: no agent is connected, and all that was under way may not have arrived."""

    term: int
    """Counts controllers of this job, from 1. Orders of an earlier one are void."""
    host: str = ""
    hold_s: float = 0.0
    """No attempt begins before: by then every agent has returned or ended its workers, even one that is not on record."""
    restart: int = 0
    """How often a scheduler has started the job again. Where it grows, none of the agents on record is left."""
    needs: int = 0
    """As in `JobStarted`, where that is not on record."""


class LeaseRecorded(msgspec.Struct, frozen=True, tag="lease_recorded", kw_only=True):
    """Machines are late, or are not any more: from now on leases may be granted that are over for certain after this silence."""

    lost_s: float


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
    JobStarted
    | NodeJoined
    | NodeReturned
    | NodeLost
    | NodeLeft
    | NodeToldToLeave
    | NodeCannotStart
    | NodeEvicted
    | NodeReadmitted
    | RestartAsked
    | ControllerResumed
    | LeaseRecorded
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
    | CodeCaptured
    | UpdateStaged
    | UpdateRefused
    | UpdateDue
    | RollbackAsked
    | StepsSurvived
    | NotFinite
    | CodeLacking
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
