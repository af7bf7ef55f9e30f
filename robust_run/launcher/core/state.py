"""State and policy of the job state machine. No behaviour but small questions to the state.

The state is changed in place by `core.step`: with 10,000 nodes a copy per event would cost more than the decision. A caller
that wants to keep one copies it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.core.restart import Trail
from robust_run.launcher.model.actions import EndAttempt, Finish
from robust_run.launcher.model.code_events import Ledger
from robust_run.launcher.model.events import RankExited
from robust_run.launcher.model.health_events import HealthRecord
from robust_run.launcher.model.job import (
    JobPolicy,
    JobSpec,
    NodeInfo,
    NodePolicy,
    Placement,
    Progress,
    RankEvidence,
    VerdictDraft,
)
from robust_run.launcher.model.resume_events import PartsElsewhere, PassedOver, ResumePoint, SavedCheckpoint
from robust_run.tracer.types import TraceVerdict

Phase = Literal[
    "new", "gathering", "opening", "running", "suspecting", "ending", "stopping", "over", "diagnosing", "replaying"
]
"""gathering: waits for nodes. opening: the store of the next attempt is being opened. suspecting: a rank lost its connection, a
peer is about to say why. ending, stopping: the attempt is being ended, to go on or for good. diagnosing: nothing of the job runs,
its nodes are checked. replaying: groups of its nodes run the program at the same time (`core.replaying`)."""

GOING: tuple[Phase, ...] = ("opening", "running", "suspecting")
"""Phases in which an attempt is meant to go on."""

Standing = Literal["active", "standby", "evicted", "lost", "left"]
"""active: part of the current attempt. standby: joined and not needed now. lost: silent. left: went in good order."""


_NODES = NodePolicy()


class CorePolicy(JobPolicy, frozen=True, kw_only=True):
    """Core policy derived from the JobSpec (`policy_of`): its `JobPolicy`, and what is known of its nodes."""

    diagnose: str = "never"
    """As in the spec. A policy that is not of one, a test's, has no ladder unless it asks for it."""
    fewest: int = _NODES.fewest
    most: int = _NODES.most
    join_timeout_s: float = _NODES.join_timeout_s
    last_call_s: float = _NODES.last_call_s
    wait_for_nodes_s: float | None = _NODES.wait_for_nodes_s
    many: bool = False
    """A job of several nodes: the loss of one is healed, not the end."""
    exist: int = 0
    """Nodes that a scheduler has started for the job: no others will come; 0: others may."""
    job: str = ""
    """What its workers see as ROBUST_JOB."""
    patience_s: float = 1.0
    """How long peers of a rank that lost its connection may take to say what really happened."""


LADDER = "robust-run, ladder"
"""By whom a node is evicted that stop-time checks or a replay have found at fault."""


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """Why a host is not used."""

    reason: str
    by: str
    at_unix_s: float = 0.0


class Member(msgspec.Struct, kw_only=True):
    """One agent, as long as the job lives."""

    info: NodeInfo
    joined: int
    """Order of joining, from 0."""
    present: bool = True
    """It has neither been lost nor left."""
    gone: Literal["", "lost", "left"] = ""
    reason: str = ""
    since_s: float = 0.0
    """When it joined, was lost or left."""
    checked: Literal["", "admitted", "refused"] = ""
    """What checks said of it while no attempt needed it; refused: and it stays all the same."""
    aside: str = ""
    """Why it was set aside: others are taken before it, and it is let go as soon as one can take its place. Empty: it was not."""


class EndCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt was ended, if no rank's failure is the reason."""

    kind: Literal["lost", "left", "evicted", "fenced", "asked", "behind"]
    at_s: float
    """Onset: for a lost node its last sign of life."""
    node: str = ""
    """Name of the host."""
    ranks: tuple[int, ...] = ()
    text: str = ""
    rule: str = ""
    """The rule of health that had it evicted; empty: none did."""
    stood_s: float = 0.0
    """For how long the controller's own process had stood still, too; 0.0: it had not."""


def policy_of(spec: JobSpec) -> CorePolicy:
    """Return the core's policy for a job."""
    nodes = spec.many if spec.many is not None else _NODES
    shared = {name: getattr(spec, name) for name in JobPolicy.__struct_fields__}
    shared |= {name: getattr(nodes, name) for name in NodePolicy.__struct_fields__}
    exist = spec.slurm.nodes if spec.many is not None and spec.slurm is not None else 0
    return CorePolicy(**shared, many=spec.many is not None, exist=exist, job=spec.run_id)


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose keeper holds what its ranks save, as of one attempt."""

    node: str
    name: str
    first_rank: int
    nproc: int


class MemoryAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's keeper takes copies and gives parts away."""

    host: str
    port: int
    takes_copies: bool = True


class JobState(msgspec.Struct, kw_only=True, rename={"ladder_state": "climb"}):  # as elected controllers save it
    """Everything the core knows between two events."""

    phase: Phase = "new"
    term: int = 1
    restart: int = 0
    """How often a scheduler has started the job again, as far as is on record."""
    limit_is_near: bool = False
    """A scheduler ends the job soon and starts it again: an attempt that fails is the last one until then."""
    attempt: int = -1
    """Number of the newest attempt; -1 before the first."""
    members: dict[str, Member] = {}
    """By agent id, in the order they joined."""
    evicted: dict[str, Eviction] = {}
    """By host name."""
    unable: dict[str, str] = {}
    """Hosts whose task ended before it joined, and why."""
    usable: int = 0
    """How many members are present, not evicted, and not told to leave."""
    told: set[str] = set()
    """Members that are present and were told to leave: no attempt begins until they have left."""
    layout: tuple[Placement, ...] = ()
    """The world of the newest attempt, by group rank."""
    places: dict[str, int] = {}
    """Group rank by agent id, of that world."""
    address: str = ""
    port: int = 0
    """Where its store listens."""
    live: set[int] = set()
    """Ranks whose end has not been seen."""
    early_exits: list[RankExited] = []
    """Ends that were reported before the store's opening is on record again: a journal may have lost it."""
    started: set[str] = set()
    """Nodes of the attempt that said AttemptStarted."""
    nccl: str = ""
    """What was last said of tracing NCCL."""
    unended: set[str] = set()
    """Nodes of the attempt on which its processes may still run: the next attempt waits for them."""
    strays: dict[str, int] = {}
    """Nodes that may run an attempt that is not, or not as such, on record, and its number: the next one waits for them too."""
    told_of: int = -1
    """The newest attempt that any agent was told of, as far as known: above `attempt` if the journal lost some."""
    lost_after_s: float = 0.0
    """Silence after which a node has ended its workers for certain, by the longest lease that may be in force; 0: the usual."""
    hold_until_s: float | None = None
    """No attempt begins before: agents that are not on record may still run something."""
    evidence: list[RankEvidence] = []
    progress: Progress = Progress()
    causes: list[EndCause] = []
    is_inquiring: bool = False
    """A rank waits too long for a peer, and the evidence of all ranks is being looked at."""
    suspected_at_s: float | None = None
    """Since when."""
    traced: TraceVerdict | None = None
    """What that evidence says of this attempt."""
    awaits_post_mortem: bool = False
    """The attempt is over everywhere, and is concluded with what is said next of what its ranks left behind."""
    is_traced_end: bool = False
    """It is why the attempt was ended."""
    suspended_for: str = ""
    """It did not fail, it was ended so that its nodes can be checked: a kind of failure of the ladder. Empty: it was not."""
    suspended_sign: str = ""
    """Name of what a sensor saw, if that is why."""
    evicted_for: tuple[str, ...] = ()
    """Hosts that were evicted for it."""
    reported: list[tuple[str, tuple[int, ...], float]] = []
    """Kinds and ranks of verdicts that were reported while the attempt went on, and when."""
    waits: dict[str, int] = {}
    """By node: the number of the long wait of its ranks that goes on; absent: none does."""
    waits_over: dict[str, int] = {}
    """By node: the number of its newest long wait of this attempt that is over."""
    stands_still: bool = False
    """Such a wait was only reported, and no rank has gone on since."""
    unproven_ends: dict[str, int] = {}
    """How many attempts were ended for a wait that was not proven, by where it was; over all attempts."""
    cured: dict[tuple[str, tuple[int, ...]], tuple[str, float]] = {}
    """Of kinds and ranks of verdicts the node that was evicted for it last, and when (wall clock); over all attempts."""
    act_at_s: float | None = None
    """When a wait that was only reported is looked at again and acted on, if it still goes on."""
    last_left_at_s: float | None = None
    """When the newest rank came to its end while others went on."""
    leftovers_at_s: float | None = None
    """When it is looked at who still runs."""
    leftovers_pause_s: float = 0.0
    """How long that takes the next time."""
    looks_at_leftovers: bool = False
    """The evidence is being looked at for that reason."""
    all_well: bool = False
    """Every rank has ended with exit code 0."""
    crashed_at_exit: set[int] = set()
    """Ranks that died of a signal when their program had come to its end: like those that ended well, but for the exit code."""
    trouble: str = ""
    """A failure of this attempt that is no rank's: a worker that could not be started, a lost store."""
    detected_at_s: float | None = None
    """When the first failure of this attempt was seen."""
    deadline_at_s: float | None = None
    """When patience or the wait for nodes is over."""
    gathering_since_s: float | None = None
    first_needs: int = 0
    """Nodes without which the first attempt does not begin, where those are more than `fewest`."""
    pause_until_s: float | None = None
    """No attempt begins before: what failed the last one needs time to pass."""
    enough_since_s: float | None = None
    """Since when `fewest` nodes have been there, while gathering."""
    ending: EndAttempt | None = None
    """What the nodes of the attempt were told, for those that did not hear it."""
    stop_signal: int | None = None
    """The signal that ends the job, once it came."""
    stopped_by: str = ""
    finish: Finish | None = None
    """How it ended, once it is over."""
    trail: Trail = Trail()
    ladder_state: bytes = b""
    """What the ladder remembers (`core.ladder.ladder_state`), packed: most jobs never need it."""
    code: Ledger = Ledger()
    """Versions of the code, and which run."""
    code_fault: VerdictDraft | None = None
    """What the version on probation, or the training itself, was found at fault of, in this attempt."""
    health: HealthRecord = msgspec.field(default_factory=HealthRecord)
    looks_in: str = ""
    """Folder of checkpoints that the newest attempt starts from; empty: it is told of none."""
    has_memory: bool = False
    """A node of the newest attempt holds in memory what its ranks save."""
    asks_memory: bool = False
    """It is asked what is in memory, so the attempt waits for a resume point."""
    held_by: tuple[MemoryHolder, ...] = ()
    """The nodes of the attempt before, where it had memory."""
    last_memory: ResumePoint | None = None
    """What the attempt before started from, if that was in memory."""
    versions_run: dict[int, int] = {}
    """Version of the code by attempt, of attempts with memory."""
    began_at: dict[int, int] = {}
    """Step by attempt, of attempts with memory: what was made beyond it before belongs to a past that did not happen."""
    memory_at: dict[str, MemoryAddress] = {}
    """By agent id: keepers that take copies, in the order they said so."""
    memory_peers: dict[str, str] = {}
    """By node of the newest attempt: the one that is to have copies of what it keeps; empty: not decided yet."""
    memory_keeps: dict[str, str] = {}
    """The same the other way round."""
    memory_told: dict[str, MemoryAddress] = {}
    """By node: where it was told to send them in this attempt."""
    memory_needs: dict[str, tuple[int, int]] = {}
    """By node of the newest attempt: the strides at which it can keep steps, and copy them; absent: every step."""
    memory_strides: tuple[int, int] = (1, 1)
    """What its nodes were told to go by."""
    memory_groups: tuple[tuple[int, ...], ...] = ()
    """Places of nodes that share a parallel group, in a world of `memory_shape`."""
    memory_shape: tuple[int, ...] = ()
    """Ranks of each node, by place, when that was seen; empty: it was not."""
    elsewhere: tuple[PartsElsewhere, ...] = ()
    """What nodes of the newest attempt get from the memory of others before it starts."""
    resume: ResumePoint | None = None
    """Where it starts from; None: not chosen yet, or it is told of none."""
    last_point: ResumePoint | None = None
    """The newest checkpoint that an earlier attempt started from."""
    started_from: dict[str, None] = {}
    """Uuids of checkpoints in storage that attempts started from."""
    last_saved: SavedCheckpoint | None = None
    """The newest checkpoint that ranks of the job are known to have saved in the folder, whether it is still there or not."""
    passed_over: dict[str, PassedOver] = {}
    """Checkpoints that ranks found damaged, by uuid: no attempt starts from them any more."""
    found_damaged: str = ""
    """Uuid of the one that ranks found damaged in this attempt."""
    told_over: set[str] = set()
    """What was said of checkpoints that were passed over."""
    reached_step: int | None = None
    """The step that the attempt before had reached, as far as it can be reckoned."""
    failed_at_s: float | None = None
    """When what ended the attempt before began."""
    no_point: Literal["", "now", "ever"] = ""
    """It could not be told where the attempt starts from: now, or whenever it is tried."""

    @property
    def is_over(self) -> bool:
        """Whether the job has finished."""
        return self.phase == "over"

    @property
    def is_new(self) -> bool:
        """Whether nothing has happened yet: the job's start is not on record."""
        return self.phase == "new"

    @property
    def is_held_from_start(self) -> bool:
        """Whether no attempt has begun yet because workers of an earlier run may live."""
        return self.attempt < 0 and self.hold_until_s is not None

    @property
    def runs_nothing(self) -> bool:
        """Whether the next attempt waits for nodes, and nothing of an earlier one runs or is being ended."""
        return self.phase == "gathering" and not self.unended and not self.strays

    @property
    def is_going(self) -> bool:
        """Whether an attempt is meant to go on: it is being started, it trains, or a rank of it is under suspicion."""
        return self.phase in GOING

    @property
    def is_started(self) -> bool:
        """Whether the workers of an attempt have been told to start and nothing has been told to end them."""
        return self.phase in ("running", "suspecting")

    @property
    def is_training(self) -> bool:
        """Whether an attempt runs and nothing is known to be wrong with its ranks."""
        return self.phase == "running"

    @property
    def has_ranks(self) -> bool:
        """Whether ranks of the newest attempt may be alive, to be looked at."""
        return self.phase in ("running", "suspecting", "ending", "stopping")

    @property
    def is_ending(self) -> bool:
        """Whether an attempt is being ended and the job may go on."""
        return self.phase == "ending"

    @property
    def is_stopping(self) -> bool:
        """Whether the job is being ended for good."""
        return self.phase == "stopping"

    @property
    def is_diagnosing(self) -> bool:
        """Whether nothing of the job runs because its nodes are being checked."""
        return self.phase == "diagnosing"

    @property
    def is_on_ladder(self) -> bool:
        """Whether the ladder has its nodes: they are checked, or run the program in groups."""
        return self.phase in ("diagnosing", "replaying")

    def is_in_world(self, node: str) -> bool:
        """Whether this agent has a place in the newest attempt, or is looked at because of it."""
        return self.phase not in ("new", "gathering", "over") and node in self.places

    @property
    def ended_well(self) -> int:
        """How many ranks of an attempt that goes on have come to the end of their program."""
        return self.world_size - len(self.live) if self.is_training else 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs anywhere, as far as known."""
        return not self.unended and not self.strays

    @property
    def world_size(self) -> int:
        """Ranks of the newest attempt."""
        return self.layout[-1].first_rank + self.layout[-1].nproc if self.layout else 0

    def standing(self, member: Member) -> Standing:
        """Return what an agent is to the job now."""
        if member.gone:
            return member.gone
        if member.info.name in self.evicted:
            return "evicted"
        return "active" if self.is_in_world(member.info.id) else "standby"
