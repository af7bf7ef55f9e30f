"""From the traces of all ranks to who keeps the others waiting inside NCCL, and in what. Pure.

The method is Mycroft's (arXiv 2509.03018, section 5): the communicator concerned, in it the flow that does not go on, from
flows to ranks and nodes. `graph` says what each flow waits for, `blame` makes faults of the causes, `words` says them.

With a reading from a moment before, what moved since then is no cause, and what did not is certain (the temporal rule: a sender
whose counters stay equal again and again waits for its GPU). Without one, a look in the midst of normal work finds faults that
are none: ask only where there is a suspicion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from robust_run.tracer.nccl.blame import EVERYBODY, Blame, blames, everybody
from robust_run.tracer.nccl.graph import WaitGraph, reached
from robust_run.tracer.nccl.states import Cause, FlowVertex, Vertex, cause_of, state_of
from robust_run.tracer.nccl.stragglers import stragglers
from robust_run.tracer.nccl.teams import Team, TeamFlow, teams_of
from robust_run.tracer.nccl.types import EVIDENCE, Confidence, NcclDiagnosis, NcclFault, NcclSight, NcclWait
from robust_run.tracer.nccl.words import flow_line, op_of, sentence, straggler_sentence

__all__ = ["diagnose"]

_CERTAINTY = {"high": 0, "medium": 1, "low": 2}


def diagnose(sights: Sequence[NcclSight]) -> NcclDiagnosis:
    """Return who keeps whom waiting. `sights`: one of each rank, also of those that are dead or have no trace."""
    teams = teams_of(sights)
    graph = WaitGraph(sights, teams)
    by_rank = {sight.rank: sight for sight in sights}
    causes = {reason: None for reasons in graph.reasons.values() for reason in reasons if isinstance(reason, Cause)}
    found = blames(list(causes), by_rank, teams) + _circles(graph, by_rank, teams)
    faults = [_fault(blame, graph, by_rank, teams) for blame in found]
    faults += _stragglers(teams, by_rank)
    faults.sort(key=lambda fault: (_CERTAINTY[fault.confidence], -len(fault.waiting)))
    return NcclDiagnosis(faults=tuple(faults), waits=tuple(_waits(graph, teams)))


def _fault(blame: Blame, graph: WaitGraph, sights: Mapping[int, NcclSight], teams: Mapping[int, Team]) -> NcclFault:
    """Say what is to be said of a fault."""
    causes = set(blame.causes)
    waiting = _worlds(teams, graph.reasons if blame.kind == "deadlock" else reached(graph, causes))
    team = teams[_most(cause.team for cause in blame.causes)]
    flows = [team.flows[cause.flow] for cause in blame.causes if cause.team == team.hash and cause.flow is not None]
    seen = flows or _waiting_for(graph, causes, team)
    lead = max(seen, key=lambda flow: flow.flow.op_seq, default=None)
    func, seq = ("", None) if lead is None or not lead.func else (lead.func, lead.flow.op_seq)
    return NcclFault(
        kind=blame.kind,
        scope=blame.scope,
        state=blame.causes[0].state,
        ranks=blame.worlds,
        nodes=blame.nodes,
        suspects=blame.suspects,
        comm=team.name,
        func=func,
        seq=None if lead is None or lead.p2p else seq,
        waiting=tuple(sorted(waiting - set(blame.worlds))),
        confidence=_confidence(blame, sights),
        rule=blame.rule,
        sentence=sentence(team, blame, flows, func, None if lead is None or lead.p2p else seq),
        evidence=tuple(flow_line(flow) for flow in seen[:EVIDENCE]),
    )


def _confidence(blame: Blame, sights: Mapping[int, NcclSight]) -> Confidence:
    """How certain a fault is: less so where several may be at fault, or where only one moment was seen."""
    if (
        blame.kind == "unseen"
        or blame.rule == EVERYBODY
        or (blame.kind != "deadlock" and len(blame.worlds) == len(sights) > 1)
    ):
        return "low"
    steady = all(sight.before is not None for sight in sights.values() if sight.trace is not None)
    return "high" if blame.certain and (steady or blame.kind == "dead") else "medium"


def _most(teams: Iterable[int]) -> int:
    counted: dict[int, int] = {}
    for team in teams:
        counted[team] = counted.get(team, 0) + 1
    return max(counted, key=lambda team: counted[team])


def _worlds(teams: Mapping[int, Team], vertices: Iterable[Vertex]) -> set[int]:
    """Return the ranks whose flows are among the vertices."""
    return {teams[vertex.team].flows[vertex.key].world for vertex in vertices if isinstance(vertex, FlowVertex)}


def _waiting_for(graph: WaitGraph, causes: set[Cause], team: Team) -> list[TeamFlow]:
    """Return the flows of a team that wait for causes, those nearest to them first where there are any."""

    vertices = [
        vertex for vertex in reached(graph, causes) if isinstance(vertex, FlowVertex) and vertex.team == team.hash
    ]
    return [team.flows[vertex.key] for vertex in sorted(vertices)]


def _circles(graph: WaitGraph, sights: Mapping[int, NcclSight], teams: Mapping[int, Team]) -> list[Blame]:
    """Return the circle of ranks that wait for each other, where waiting leads to no cause at all."""
    settled = reached(graph, [reason for reason in graph.back if isinstance(reason, Cause)], graph.moving)
    left = [vertex for vertex in graph.reasons if vertex not in settled]
    if not left:
        return []
    path: list[Vertex] = [left[0]]
    while True:
        following = next((reason for reason in graph.reasons[path[-1]] if not isinstance(reason, Cause)), None)
        if following is None:
            return []
        if following in path:
            path = path[path.index(following) :]
            break
        path.append(following)
    flows = [teams[vertex.team].flows[vertex.key] for vertex in path if isinstance(vertex, FlowVertex)]
    worlds = tuple(dict.fromkeys(seen.world for seen in flows))
    if len({(seen.team, seen.func, seen.flow.op_seq) for seen in flows}) == 1:  # data goes in a circle in each ring
        team = teams[flows[0].team]
        members = tuple(sorted(member.sight.rank for member in team.members.values() if member.sight.alive))
        causes = [Cause("gpu", state_of(seen), worlds, seen.team, seen.flow.rank, seen.key) for seen in flows]
        return [everybody(members, causes, sights)]
    return [
        Blame(
            kind="deadlock",
            scope="rank",
            worlds=tuple(sorted(worlds)),
            nodes=tuple(dict.fromkeys(sights[world].node for world in sorted(worlds))),
            causes=tuple(
                Cause("deadlock", state_of(seen), worlds, seen.team, seen.flow.rank, seen.key) for seen in flows
            ),
            certain=False,
            rule="circle",
        )
    ]


def _waits(graph: WaitGraph, teams: Mapping[int, Team]) -> list[NcclWait]:
    """Return which rank waits for which, as far as the two ends of a flow tell."""
    found: dict[tuple[int, int], NcclWait] = {}
    for seen in graph.starts():
        team = teams[seen.team]
        peer = team.world_of(seen.flow.peer)
        if peer is None or seen.moved or cause_of(seen, team.other_end(seen)) not in ("remote", "either"):
            continue
        what = op_of(team, seen.func, None if seen.p2p else seen.flow.op_seq)
        found.setdefault((seen.world, peer), NcclWait(waiter=seen.world, awaited=peer, what=what))
    return [found[pair] for pair in sorted(found)]


def _stragglers(teams: Mapping[int, Team], sights: Mapping[int, NcclSight]) -> list[NcclFault]:
    found: dict[int, NcclFault] = {}
    for straggler in stragglers(teams.values()):
        team = teams[straggler.team]
        found.setdefault(
            straggler.world,
            NcclFault(
                kind="straggler",
                scope="rank",
                state="idle",
                ranks=(straggler.world,),
                nodes=(sights[straggler.world].node,),
                comm=team.name,
                func=straggler.func,
                seq=straggler.seq,
                waiting=tuple(
                    sorted(of.sight.rank for of in team.members.values() if of.sight.rank != straggler.world)
                ),
                confidence="medium",
                rule=f"last-{straggler.at}",
                sentence=straggler_sentence(team, straggler),
            ),
        )
    return list(found.values())
