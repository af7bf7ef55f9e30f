"""Status view of a job: the state of the core, counted and named. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.core.state import JobState, Member
from robust_run.launcher.operator.views import health_views
from robust_run.launcher.operator.views.show import age
from robust_run.launcher.operator.views.status_types import EvictedView, IncidentView, JobView, NodesView, NodeView
from robust_run.report.types import Incident

#: Names that a JobView holds of each kind; `nodes` has them all.
NAMED = 20


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
        code=_code(state, now_unix_s),
        outcome=finish.outcome if finish else "",
        exit_code=finish.exit_code if finish else None,
        reason=finish.reason if finish else "",
    )


def _code(state: JobState, now_unix_s: float) -> str:
    code = state.code
    if len(code.records) < 2:
        return ""
    record = code.records[code.running - 1]
    fate = " (on probation)" if record.fate == "probation" else ""
    waits = f"; version {code.pending} waits for the next attempt" if code.pending else ""
    if waits and code.due_unix_s and state.finish is None:
        waits += f", {age(code.due_unix_s - now_unix_s)} at most"
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
    """Return all nodes. `now_s` is the controller's monotonic clock; None where it is not known any more."""
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
    if state.finish is not None and standing == "standby":  # no node stands by for a job that is over
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
        reason=_why(state, info.name) if standing == "evicted" else member.reason or _aside(member),
        pid=info.pid,
        version=info.version,
    )


def _aside(member: Member) -> str:
    return f"set aside, is taken last: {member.aside}" if member.aside else ""


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
