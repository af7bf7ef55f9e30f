"""Output actions of the job state machine, and the orders to agents among them. No behaviour.

Times, ranks and nodes are named as in `events`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.model.check_events import CheckAction, CheckOrder
from robust_run.launcher.model.code_events import CodeUse, StageCode
from robust_run.launcher.model.health_events import RuleSpoke
from robust_run.launcher.model.job import Placement, VerdictDraft
from robust_run.launcher.model.resume_events import (
    LookForCheckpoints,
    MemoryPeers,
    MemoryStrides,
    PartsElsewhere,
    ResumePoint,
)


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
    fetchers: tuple[str, ...] = ()
    """Where they give units of the checkpoint that they fetch ahead, HOST:PORT each."""
    fetcher_ranks: tuple[tuple[int, int], ...] = ()
    """Of each of these nodes: its first rank, and how many it has."""
    code: CodeUse | None = None
    """The version that all of them run; None: what is in the user's folder."""
    resume: ResumePoint | None = None
    """Where all ranks start from; None: no folder of checkpoints was given."""
    elsewhere: tuple[PartsElsewhere, ...] = ()
    """What nodes get from the memory of others before their ranks start; an agent is told its own."""
    leave: tuple[str, ...] = ()
    """Uuids of checkpoints that --ckpt-keep is neither to remove nor to count: damaged ones, and what attempts started from."""
    replay_steps: int = 0
    """It is a replay, over after so many optimizer steps of each rank; 0: it is none."""


class ShareBlocks(msgspec.Struct, frozen=True, tag="share_blocks", kw_only=True):
    """Get blocks of the job's image from other nodes from now on: these nodes are not in an attempt, or not yet."""

    nodes: tuple[str, ...]
    """Whom it is for."""
    peers: tuple[str, ...]
    """Where nodes give them, HOST:PORT each. Who is not among these gets blocks, and fetches none for others."""


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
    leftovers: bool = False
    """It is about ranks that still run when the others have ended, not about one that is waited for."""
    post_mortem: bool = False
    """It is about an attempt that is over: judge what its ranks left behind, and tell that before anything else."""


class Collect(msgspec.Struct, frozen=True, tag="collect", kw_only=True):
    """Look at all ranks of this node, and deliver what is seen."""

    attempt: int
    number: int
    samples: int = 3
    """0: only what their rings hold is told, and no process is looked at."""
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
    act_at_s: float | None = None
    """When something is done, if what is only reported goes on; None: nothing is."""
    stands_still: bool = False
    """It is only reported, and no rank trains from its onset until `StandstillOver`, or until the attempt is over."""


class StandstillOver(msgspec.Struct, frozen=True, tag="standstill_over", kw_only=True):
    """Ranks go on that stood still as the newest report of the attempt says."""

    attempt: int
    at_s: float


class Say(msgspec.Struct, frozen=True, tag="say", kw_only=True):
    """Tell the user something that is no incident."""

    text: str
    node: str = ""
    """On whose terminal; empty: the controller's."""


class JobEnds(msgspec.Struct, frozen=True, tag="job_ends", kw_only=True):
    """The job is being ended as a whole: these nodes, which were about to leave it, stay until it is over."""

    nodes: tuple[str, ...]


class HostEvicted(msgspec.Struct, frozen=True, tag="host_evicted", kw_only=True):
    """A host is taken out of the job. For the record: one line, whether an operator, a rule, a hang or the ladder decided it."""

    name: str
    reason: str
    by: str
    at_unix_s: float = 0.0
    listed: bool = False
    """The eviction list of earlier jobs (`--evict-list`) has it: this job decided nothing."""


class StandIn(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has copies in memory of what ranks of a lost node have saved: it writes them to storage in their place."""

    node: str
    ranks: tuple[int, ...]


class Finish(msgspec.Struct, frozen=True, tag="finish", kw_only=True):
    """The job is over, on all nodes."""

    exit_code: int
    outcome: Literal["done", "failed", "stopped"]
    reason: str = ""
    sentence: str = ""
    """The verdict, where there is one."""
    stand_ins: tuple[StandIn, ...] = ()


_Done = OpenStore | StartAttempt | EndAttempt | Dismiss | WakeAt | Inquire | RecordIncident | StageCode | Say | Finish

Action = (
    _Done
    | StandstillOver
    | JobEnds
    | HostEvicted
    | RuleSpoke
    | CheckAction
    | LookForCheckpoints
    | MemoryPeers
    | MemoryStrides
    | ShareBlocks
)

_OfAttempt = OpenStore | StartAttempt | EndAttempt | LookForCheckpoints | MemoryPeers | MemoryStrides
Order = _OfAttempt | ShareBlocks | Dismiss | Say | JobEnds | Finish | Collect | KeepTraces | StageCode | CheckOrder
"""What an agent carries out: actions, and questions of the controller."""
