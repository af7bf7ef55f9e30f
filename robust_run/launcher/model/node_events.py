"""Events of the job as a whole and of its nodes: who comes, goes, is lost, and which controller follows. No behaviour."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job import NodeInfo


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
    stood_s: float = 0.0
    """For how long the controller's own process stood still lately, at worst; 0.0: for next to nothing."""


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


JobEvent = (
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
)
