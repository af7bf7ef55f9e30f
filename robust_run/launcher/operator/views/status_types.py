"""Data types of the status API: what is answered about a job, its nodes and its journal. No behaviour.

These structs are the JSON of the API. Fields are only ever added; `schema` counts changes that an older reader would
misunderstand. Times are seconds since the epoch by the controller's clock (`_unix_s`) or durations (`_s`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.core.state import Phase, Standing
from robust_run.launcher.operator.views.health_views import BlindView, FindingView

SCHEMA = 1


class IncidentView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest failure."""

    attempt: int
    at_unix_s: float
    """When it was detected."""
    kind: str = ""
    """As in a verdict."""
    sentence: str
    action: str
    reason: str = ""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: what it was and what ended it."""

    number: int
    began_unix_s: float
    ranks: int
    nodes: int
    startup_s: float | None = None
    """From the order to start its workers to the first optimizer step; None: no step was seen."""
    ended_unix_s: float | None = None
    """None: it runs."""
    steps: int | None = None
    """Most of any rank; None: not counted."""
    why: str = ""
    """What ended it, where that was a failure."""


class EvictedView(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is not used."""

    name: str
    reason: str
    by: str
    at_unix_s: float


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one moment."""

    schema: int = SCHEMA
    run_id: str
    script: str
    alive: bool
    """A controller answered; else this is what the journal says."""
    note: str = ""
    """Why no controller answers, if the journal does not say how it ended."""
    resumable: bool = False
    """It has not ended, and no controller runs: `robust-run --resume` continues it, typed on this machine."""
    todo: str = ""
    """What to type about a job that does not answer, and where."""
    phase: Phase
    attempt: int
    """-1 before the first."""
    term: int
    restarts: int
    world_size: int
    """Ranks of the newest attempt."""
    nodes_needed: int
    nodes_wanted: int
    nodes_active: int
    nodes_standby: int
    nodes_evicted: int
    """Hosts, whether they ever joined or not."""
    nodes_lost: int
    evicted: tuple[EvictedView, ...] = ()
    """At most 20."""
    lost: tuple[str, ...] = ()
    """Names, at most 20."""
    started_unix_s: float
    now_unix_s: float
    """When this was looked at: ages are reckoned from here, not by the reader's clock."""
    ended_unix_s: float | None = None
    host: str
    """Where the controller runs or ran."""
    pid: int
    version: str
    run_directory: str
    stop_asked: bool = False
    last_incident: IncidentView | None = None
    findings: tuple[FindingView, ...] = ()
    """What is wrong with nodes, newest last, at most 20."""
    findings_count: int = 0
    """How many there are."""
    blind: tuple[BlindView, ...] = ()
    """Nodes of which something is not watched any more, at most 20."""
    blind_count: int = 0
    """How many there are."""
    nccl: str = ""
    """Whether NCCL is traced, and why not; empty: the user did not ask."""
    code: str = ""
    """Which version of the code runs, and what waits; empty: only one was ever there."""
    attempts: tuple[AttemptView, ...] = ()
    """The newest ones, at most 8, oldest first."""
    ettr: float | None = None
    """Share of the time since the job started that was training (see `report.effective`); None: it has not begun to train."""
    ettr_hour: float | None = None
    """The same of the last hour."""
    step: int | None = None
    """Newest optimizer step of the attempt; None: not counted, or no node has said yet."""
    step_age_s: float | None = None
    """How long ago that was."""
    step_s: float | None = None
    """How long a step takes."""
    waiting_s: float | None = None
    """How long a rank has been waiting in one call; None: none does, or nobody looks (`--slow-round 0`)."""
    stands_still_s: float | None = None
    """For how long no rank has trained, of a wait that was only reported; None: they train, or it is over."""
    outcome: Literal["", "done", "failed", "stopped"] = ""
    exit_code: int | None = None
    reason: str = ""
    """Why it ended."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, or a host that is evicted and has no agent."""

    name: str
    id: str = ""
    address: str = ""
    standing: Standing
    ranks: str = ""
    """`0-7`, of the current attempt; empty: none."""
    group_rank: int | None = None
    nproc: int = 0
    silent_s: float | None = None
    """Since its last sign of life; None: no connection, or not asked."""
    since_s: float | None = None
    """How long it has been there, or gone."""
    reason: str = ""
    pid: int = 0
    version: str = ""


class LiveNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as a user who watches wants it."""

    name: str
    standing: str
    ranks: str = ""
    silent_s: float | None = None
    step: int | None = None
    own_s: float | None = None
    """How long its slowest rank works for a step, without waiting for peers."""
    slow: float | None = None
    """That by the median of all nodes; None: not known."""
    rank: int | None = None
    """Its slowest rank."""
    odd: str = ""
    """Why it is among the first; empty: it is like the others."""


class NodesView(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of a job: those at work first, by rank."""

    schema: int = SCHEMA
    nodes: tuple[NodeView, ...]


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal and its number; the first line is 0."""

    index: int
    line: msgspec.Raw


class EventsView(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines of the journal."""

    schema: int = SCHEMA
    events: tuple[EventLine, ...]
    next: int
    """Ask for this one next."""


class ActionView(msgspec.Struct, frozen=True, kw_only=True):
    """What was done at an operator's wish."""

    schema: int = SCHEMA
    done: str
    """A sentence."""
    warning: str = ""
    node: str = ""
