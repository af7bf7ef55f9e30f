"""Status view of a job: the state of the core, counted and named. Pure.

These structs are the JSON of the API. Fields are only ever added; `schema` counts changes that an older reader would
misunderstand. Times are seconds since the epoch by the controller's clock (`_unix_s`) or durations (`_s`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.core.state import JobState, Member, Phase, Standing
from robust_run.launcher.operator.views import health_views
from robust_run.launcher.operator.views.health_views import BlindView, FindingView
from robust_run.report.types import Incident

SCHEMA = 1

#: Names that a JobView holds of each kind; `nodes` has them all.
NAMED = 20


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
    """Why nobody answers, if the journal does not say how it ended."""
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
    """When this was looked at: ages are reckoned from here, whatever the reader's clock says."""
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
    """Whether NCCL is traced, and why not; empty: nobody asked."""
    code: str = ""
    """Which version of the code runs, and what waits; empty: only one was ever there."""
    attempts: tuple[AttemptView, ...] = ()
    """The newest ones, at most 8, oldest first."""
    ettr: float | None = None
    """Share of the time since the job started that was training (see `report.effective`); None: it has not begun to train."""
    ettr_hour: float | None = None
    """The same of the last hour."""
    step: int | None = None
    """Newest optimizer step of the attempt; None: not counted, or nobody has said yet."""
    step_age_s: float | None = None
    """How long ago that was."""
    step_s: float | None = None
    """How long a step takes."""
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
    """One node, as somebody who watches wants it."""

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


def job_view(
    facts: JobFacts,
    state: JobState,
    now_unix_s: float,
    *,
    last_incident: IncidentView | None = None,
    alive: bool = True,
    ended_unix_s: float | None = None,
    note: str = "",
    resumable: bool = False,
) -> JobView:
    """Return the job as its controller knows it now, or as the journal left it."""
    standings = [(member, state.standing(member)) for member in _current(state)]
    lost = [member.info.name for member, standing in standings if standing == "lost"]
    finish = state.finish
    findings = health_views.findings(state, now_unix_s)
    blind = health_views.blind(state, [member for member, _ in standings])
    return JobView(
        run_id=facts.run_id,
        script=facts.script,
        alive=alive,
        note=note,
        resumable=resumable,
        phase=state.phase,
        attempt=state.attempt,
        term=state.term,
        restarts=max(state.attempt, 0),
        world_size=state.world_size,
        nodes_needed=facts.policy.fewest,
        nodes_wanted=facts.policy.most,
        nodes_active=sum(standing == "active" for _, standing in standings),
        nodes_standby=sum(standing == "standby" for _, standing in standings),
        nodes_evicted=len(state.evicted),
        nodes_lost=len(lost),
        evicted=tuple(
            EvictedView(name=name, reason=why.reason, by=why.by, at_unix_s=why.at_unix_s)
            for name, why in list(state.evicted.items())[-NAMED:]
        ),
        lost=tuple(lost[-NAMED:]),
        started_unix_s=facts.started_unix_s,
        now_unix_s=now_unix_s,
        ended_unix_s=ended_unix_s,
        host=facts.host,
        pid=facts.pid,
        version=facts.version,
        run_directory=facts.run_directory,
        stop_asked=state.stop_signal is not None,
        last_incident=last_incident,
        findings=findings[-NAMED:],
        findings_count=len(findings),
        blind=blind[-NAMED:],
        blind_count=len(blind),
        nccl=state.nccl,
        code=_code(state),
        outcome=finish.outcome if finish else "",
        exit_code=finish.exit_code if finish else None,
        reason=finish.reason if finish else "",
    )


def _code(state: JobState) -> str:
    code = state.code
    if len(code.records) < 2:
        return ""
    record = code.records[code.running - 1]
    fate = " (on probation)" if record.fate == "probation" else ""
    waits = f"; version {code.pending} waits for the next attempt" if code.pending else ""
    return f"code: version {record.version.number} of {len(code.records)}{fate}{waits}"


def incident_view(incident: Incident) -> IncidentView:
    """Return what a status shows of an incident."""
    return IncidentView(
        attempt=incident.attempt,
        at_unix_s=incident.detected_s,
        kind=incident.verdict.kind,
        sentence=incident.verdict.sentence,
        action=incident.action.name,
        reason=incident.action.reason,
    )


def node_views(
    state: JobState, silent_s: Callable[[str], float | None] = lambda _: None, now_s: float | None = None
) -> NodesView:
    """Return all nodes. `now_s` is the controller's monotonic clock; None where nobody knows it any more."""
    views = [_node_view(state, member, silent_s, now_s) for member in _current(state)]
    known = {view.name for view in views}
    views += [
        NodeView(name=name, standing="evicted", reason=_why(state, name)) for name in state.evicted if name not in known
    ]
    order = ("active", "standby", "evicted", "lost", "left")
    views.sort(key=lambda view: (order.index(view.standing), view.group_rank if view.group_rank is not None else -1))
    return NodesView(nodes=tuple(views))


def _node_view(
    state: JobState, member: Member, silent_s: Callable[[str], float | None], now_s: float | None
) -> NodeView:
    info = member.info
    standing = state.standing(member)
    if state.finish is not None and standing == "standby":  # nobody stands by for a job that is over
        standing = "left"
    ranks, group_rank = "", None
    if state.is_in_world(info.id) and not member.gone:
        placement = state.layout[state.places[info.id]]
        group_rank = placement.group_rank
        last = placement.first_rank + placement.nproc - 1
        ranks = f"{placement.first_rank}-{last}" if placement.nproc > 1 else f"{last}"
    return NodeView(
        name=info.name,
        id=info.id,
        address=info.address,
        standing=standing,
        ranks=ranks,
        group_rank=group_rank,
        nproc=info.nproc,
        silent_s=silent_s(info.id) if member.present else None,
        since_s=None if now_s is None else max(now_s - member.since_s, 0.0),
        reason=_why(state, info.name) if standing == "evicted" else member.reason,
        pid=info.pid,
        version=info.version,
    )


def _why(state: JobState, name: str) -> str:
    eviction = state.evicted[name]
    return f"{eviction.reason or 'no reason given'} (by {eviction.by})"


def _current(state: JobState) -> list[Member]:
    """Return the members without those agents that a later one on the same host has taken the place of."""
    newest: dict[str, Member] = {}
    for member in state.members.values():
        known = newest.get(member.info.name)
        if known is None or member.joined > known.joined:
            newest[member.info.name] = member
    return [member for member in state.members.values() if not member.gone or not _replaced(member, newest)]


def _replaced(member: Member, newest: dict[str, Member]) -> bool:
    other = newest[member.info.name]
    return other.joined > member.joined and other.since_s >= member.since_s
