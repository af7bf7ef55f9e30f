"""What happens to a job (events) and what is done about it (actions): the words the core speaks. No behaviour.

Times are seconds of the controller's monotonic clock (`_at_s`); what an agent reports in its own time is rebased on the way.
Ranks are global. A node is named by the id of its agent (`NodeInfo.id`) unless a field says `name`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.check_events import CheckAction, CheckEvent, CheckOrder, ReplayStepped
from robust_run.launcher.code_types import (
    CodeCaptured,
    CodeLacking,
    CodeUse,
    NotFinite,
    RollbackAsked,
    StageCode,
    StepsSurvived,
    UpdateDue,
    UpdateRefused,
    UpdateStaged,
)
from robust_run.launcher.health_events import HealthEvent, RuleSpoke
from robust_run.launcher.types import (
    NodeInfo,
    Placement,
    Progress,
    RankEvidence,
    Rung,
    VerdictDraft,
)
from robust_run.tracer.types import TraceVerdict

# --- events: the job and its nodes ----------------------------------------------------------------------------------


class JobStarted(msgspec.Struct, frozen=True, tag="job_started"):
    """The run directory exists; nothing runs yet."""

    restart: int = 0  # see `ControllerResumed`


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


class NodeEvicted(msgspec.Struct, frozen=True, tag="node_evicted", kw_only=True):
    """Somebody, or a rule, took a host out of the job: all agents there, now and later."""

    name: str
    reason: str
    by: str = "operator"
    at_unix_s: float = 0.0


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
    """How often a scheduler has started the job again. Where it grows, nobody of the nodes on record is left."""


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
    """By local rank: how it was started (see `warm.ladder`)."""
    why: str = ""
    """Why not by a higher rung, for the first rank that was not promoted."""
    nccl: str = ""
    """Whether NCCL is traced, and why not, where that is news (see `nccl_arming`)."""


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


# --- events: signals, the warm process, time ------------------------------------------------------------------------


class SignalReceived(msgspec.Struct, frozen=True, tag="signal_received", kw_only=True):
    """The job got a signal that ends it, or an operator's stop."""

    signal: int
    again: bool = False
    """The same source sent one before: the user will not wait."""
    by: str = ""
    """Who, where it was no signal."""


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
    | NodeEvicted
    | NodeReadmitted
    | RestartAsked
    | ControllerResumed
    | StoreOpened
    | AttemptStarted
    | RankExited
    | SpawnFailed
    | StoreLost
    | FirstStep
    | HangSuspected
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
    | SignalReceived
    | SignalPassedOn
    | WarmReady
    | WarmRefused
    | StandbyWaits
    | GuardLost
    | Tick
)

NodeEvent = (
    SignalReceived
    | StoreOpened
    | AttemptStarted
    | RankExited
    | SpawnFailed
    | StoreLost
    | FirstStep
    | HangSuspected
    | AttemptEnded
    | StepsSurvived
    | NotFinite
    | CodeLacking
    | HealthEvent
    | ReplayStepped
    | SignalPassedOn
    | WarmReady
    | WarmRefused
    | StandbyWaits
)
"""What an agent reports. Reporting one twice changes nothing."""

# --- actions: what to do --------------------------------------------------------------------------------------------


class OpenStore(msgspec.Struct, frozen=True, tag="open_store", kw_only=True):
    """Listen on the node of rank 0 for the workers of an attempt; then report `StoreOpened`."""

    attempt: int
    node: str


class StartAttempt(msgspec.Struct, frozen=True, tag="start_attempt", kw_only=True):
    """Start all ranks of these nodes; each reports `AttemptStarted`."""

    attempt: int
    address: str
    port: int
    placements: tuple[Placement, ...]
    """Whom it is for. The world may be larger: a node that missed the first order is told again alone."""
    world_size: int
    nodes: int
    """Nodes of the world."""
    peers: tuple[str, ...] = ()
    """Where nodes of the world give blocks of the job's image, HOST:PORT each."""
    code: CodeUse | None = None
    """The version that all of them run; None: what is in the user's folder."""
    replay_steps: int = 0
    """It is a replay, over after so many optimizer steps of each rank; 0: it is none."""


class EndAttempt(msgspec.Struct, frozen=True, tag="end_attempt", kw_only=True):
    """End every process of the attempt, escaped grandchildren included; then report `AttemptEnded`.

    Again with no grace: end them now.
    """

    attempt: int
    signal: int = 0
    """Workers get it first, and SIGCONT, so that a stopped one can act on it. 0: they have all ended by themselves."""
    grace_s: float = 0.0
    """From there to SIGKILL for the workers."""
    leftovers_s: float = 0.0
    """What workers leave behind gets SIGTERM and this long before SIGKILL."""
    only: tuple[str, ...] = ()
    """Nodes that are told; empty: all of the attempt."""


class Inquire(msgspec.Struct, frozen=True, tag="inquire", kw_only=True):
    """Collect evidence of all ranks and judge it; then tell `Inquired`."""

    attempt: int
    after_s: float = 0.0
    """How long a rank may be waited for in this job."""


class Collect(msgspec.Struct, frozen=True, tag="collect", kw_only=True):
    """Look at all ranks of this node, and deliver what is seen."""

    attempt: int
    number: int
    samples: int = 3
    ops: int = 64
    """Newest communication calls of each rank."""
    flows: int = 256
    """Connections of NCCL of each rank."""


class KeepTraces(msgspec.Struct, frozen=True, tag="keep_traces", kw_only=True):
    """Copy the rings of this node's ranks to the run directory."""

    attempt: int


class Dismiss(msgspec.Struct, frozen=True, tag="dismiss", kw_only=True):
    """Let a node go: it ends all it has and exits with this code."""

    node: str
    exit_code: int
    reason: str


class WakeAt(msgspec.Struct, frozen=True, tag="wake_at"):
    """Send a `Tick` at this time. A later WakeAt replaces an earlier one."""

    at_s: float


class RecordIncident(msgspec.Struct, frozen=True, tag="record_incident", kw_only=True):
    """Write an incident and say it on the terminal. The shell turns monotonic times into wall times."""

    attempt: int
    symptom: str
    onset_at_s: float
    detected_at_s: float
    verdict: VerdictDraft
    action: Literal["relaunch", "evict", "diagnose", "rollback", "replay", "stop", "report"]
    reason: str


class Say(msgspec.Struct, frozen=True, tag="say", kw_only=True):
    """Tell the user something that is no incident."""

    text: str
    node: str = ""
    """On whose terminal; empty: the controller's."""


class Finish(msgspec.Struct, frozen=True, tag="finish", kw_only=True):
    """The job is over, on all nodes."""

    exit_code: int
    outcome: Literal["done", "failed", "stopped"]
    reason: str = ""
    sentence: str = ""
    """The verdict, where there is one."""


_Done = OpenStore | StartAttempt | EndAttempt | Dismiss | WakeAt | Inquire | RecordIncident | StageCode | Say | Finish

Action = _Done | RuleSpoke | CheckAction

Order = OpenStore | StartAttempt | EndAttempt | Dismiss | Say | Finish | Collect | KeepTraces | StageCode | CheckOrder
"""What an agent carries out: actions, and questions of the controller."""
