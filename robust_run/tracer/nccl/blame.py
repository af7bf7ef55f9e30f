"""From causes in single flows to ranks and nodes: flow, rank, NIC or GPU, node (Mycroft, arXiv 2509.03018, section 5). Pure.

A rank whose flows are all stuck is at fault rather than its flows, a node whose ranks all are rather than its ranks, a peer
that is common to all that are stuck rather than they. What a dead process or a proxy thread that stands still explains is not
put down to the network or to a GPU as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.tracer.nccl.states import Cause
from robust_run.tracer.nccl.teams import Team
from robust_run.tracer.nccl.types import FaultKind, FaultScope, NcclSight

#: What explains what is seen in a rank's other flows: causes of the kinds on the right are left out.
EXPLAINS: tuple[tuple[FaultKind, frozenset[FaultKind]], ...] = (
    ("dead", frozenset({"proxy", "network", "gpu", "late", "unseen"})),
    ("proxy", frozenset({"network", "gpu"})),
    ("gpu", frozenset({"late"})),
)


#: Rule of what all members of a communicator have alike.
EVERYBODY = "gpu-everybody"


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """Causes that are one fault."""

    kind: FaultKind
    scope: FaultScope
    worlds: tuple[int, ...]
    suspects: tuple[int, ...] = ()
    nodes: tuple[str, ...]
    causes: tuple[Cause, ...]
    certain: bool
    rule: str


def blames(causes: Sequence[Cause], sights: Mapping[int, NcclSight], teams: Mapping[int, Team]) -> list[Blame]:
    """Return the faults that the causes come to."""
    left = _unexplained(causes)
    found: list[Blame] = []
    for kind in dict.fromkeys(cause.kind for cause in left):
        of_kind = [cause for cause in left if cause.kind == kind]
        found += _of_network(of_kind, sights, teams) if kind == "network" else _of_ranks(kind, of_kind, sights, teams)
    return found


def _unexplained(causes: Sequence[Cause]) -> list[Cause]:
    """Leave out what another fault of the same rank explains."""
    left = [cause for cause in causes if not cause.untold] or list(causes)
    for kind, explained in EXPLAINS:
        guilty = {world for cause in left if cause.kind == kind for world in cause.worlds[:1]}
        left = [cause for cause in left if cause.kind not in explained or not guilty.intersection(cause.worlds)]
    return left


def _of_ranks(
    kind: FaultKind, causes: Sequence[Cause], sights: Mapping[int, NcclSight], teams: Mapping[int, Team]
) -> list[Blame]:
    """Faults of ranks; of a node where all its ranks have them; of no rank in particular where all have."""
    found = []
    unknown = [cause for cause in causes if not cause.worlds]
    if unknown:
        found.append(
            Blame(
                kind=kind,
                scope="rank",
                worlds=(),
                nodes=(),
                causes=tuple(unknown),
                certain=False,
                rule="missing-member",
            )
        )
    by_worlds: dict[tuple[int, ...], list[Cause]] = {}
    for cause in causes:
        if cause.worlds:
            by_worlds.setdefault(cause.worlds, []).append(cause)
    single = {worlds[0]: of for worlds, of in by_worlds.items() if len(worlds) == 1}
    for worlds in _alike(kind, single, teams):
        of_all = tuple(cause for world in worlds if world in single for cause in single.pop(world))
        found.append(everybody(worlds, of_all, sights))
    for node, worlds in _whole_nodes(single, sights).items():
        of_node = tuple(cause for world in worlds for cause in single.pop(world))
        found.append(
            Blame(
                kind=kind,
                scope="node",
                worlds=worlds,
                nodes=(node,),
                causes=of_node,
                certain=not all(cause.unsure for cause in of_node),
                rule=f"{kind}-node",
            )
        )
    for world, of in single.items():
        found.append(_of_one(kind, (world,), of, sights))
    covered = {world for blame in found for world in blame.worlds}
    for worlds, of in by_worlds.items():
        if len(worlds) > 1 and not covered.intersection(worlds):
            found.append(_of_one(kind, worlds, of, sights))
    return found


def everybody(worlds: tuple[int, ...], causes: Sequence[Cause], sights: Mapping[int, NcclSight]) -> Blame:
    """Return the fault of GPUs that all stand where the others do: they do something else first, or stand still together."""
    return Blame(
        kind="gpu",
        scope="rank",
        worlds=worlds,
        nodes=_nodes(worlds, sights),
        causes=tuple(causes),
        certain=False,
        rule=EVERYBODY,
    )


def _alike(kind: FaultKind, single: Mapping[int, list[Cause]], teams: Mapping[int, Team]) -> list[tuple[int, ...]]:
    """Return the members of communicators all of whose GPUs stand still, the largest first and no rank twice."""
    found: list[tuple[int, ...]] = []
    if kind != "gpu":
        return found
    for team in sorted(teams.values(), key=lambda team: -len(team.members)):
        members = tuple(sorted(member.sight.rank for member in team.members.values() if member.sight.alive))
        stuck = all(any(cause.team == team.hash for cause in single.get(world, ())) for world in members)
        if len(members) > 1 and stuck and not any(set(members) & set(before) for before in found):
            found.append(members)
    return found


def _of_one(kind: FaultKind, worlds: tuple[int, ...], of: Sequence[Cause], sights: Mapping[int, NcclSight]) -> Blame:
    return Blame(
        kind=kind,
        scope="rank",
        worlds=worlds,
        nodes=_nodes(worlds, sights),
        causes=tuple(of),
        certain=len(worlds) == 1 and not all(cause.unsure for cause in of),
        rule=f"{kind}-rank",
    )


def _whole_nodes(of: Mapping[int, list[Cause]], sights: Mapping[int, NcclSight]) -> dict[str, tuple[int, ...]]:
    """Return the nodes, of two ranks or more, all of whose ranks are among those given; not if that is every node."""
    ranks: dict[str, list[int]] = {}
    for sight in sights.values():
        ranks.setdefault(sight.node, []).append(sight.rank)
    whole = {
        node: tuple(sorted(of_node))
        for node, of_node in ranks.items()
        if len(of_node) > 1 and of.keys() >= set(of_node)
    }
    return whole if len(whole) < len(ranks) else {}


def _nodes(worlds: Sequence[int], sights: Mapping[int, NcclSight]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sights[world].node for world in worlds if world in sights))


# ---- the network ----
def _of_network(causes: Sequence[Cause], sights: Mapping[int, NcclSight], teams: Mapping[int, Team]) -> list[Blame]:
    """Faults of the network: of a node, of a rank, or between two ranks, whichever most of the stuck pairs have in common."""
    left = list(causes)
    found = []
    while left:
        blame = _common(left, sights) or _between_nodes(left, sights) or _of_pair(left, sights, teams)
        found.append(blame)
        left = [cause for cause in left if cause not in blame.causes]
    return found


def _common(causes: Sequence[Cause], sights: Mapping[int, NcclSight]) -> Blame | None:
    """The node, or the rank, that most stuck pairs have in common: two pairs at least, and more than any other has."""
    pairs = {frozenset(cause.worlds) for cause in causes}
    for scope, of in (("rank", _by_rank), ("node", _by_node)):
        counts = Counter(name for pair in pairs for name in of(pair, sights))
        (name, most), *others = counts.most_common(2)
        if most < len(pairs) and scope == "rank":
            continue  # a node may have more of them in common
        if most < 2 or (others and others[0][1] == most):
            continue
        mine = tuple(cause for cause in causes if name in of(frozenset(cause.worlds), sights))
        touched = {world for cause in mine for world in cause.worlds if name in of(frozenset({world}), sights)}
        return Blame(
            kind="network",
            scope="node" if len(touched) > 1 else "rank",
            worlds=tuple(sorted(touched)),
            nodes=_nodes(sorted(touched), sights),
            causes=mine,
            certain=True,
            rule="common-peer" if len(touched) == 1 else "common-node",
        )
    return None


def _between_nodes(causes: Sequence[Cause], sights: Mapping[int, NcclSight]) -> Blame | None:
    """Two nodes between which several pairs of ranks are stuck: it is one of the two, and nothing tells which."""
    pairs: dict[frozenset[object], set[frozenset[int]]] = {}
    for cause in causes:
        pair = frozenset(cause.worlds)
        pairs.setdefault(frozenset(_by_node(pair, sights)), set()).add(pair)
    nodes, most = max(pairs.items(), key=lambda item: len(item[1]))
    if len(nodes) < 2 or len(most) < 2:
        return None
    worlds = tuple(sorted({world for pair in most for world in pair}))
    mine = tuple(cause for cause in causes if frozenset(cause.worlds) in most)
    return Blame(
        kind="network",
        scope="node",
        worlds=worlds,
        nodes=_nodes(worlds, sights),
        causes=mine,
        certain=False,
        rule="between-nodes",
    )


def _by_rank(pair: frozenset[int], _: Mapping[int, NcclSight]) -> set[object]:
    return set(pair)


def _by_node(pair: frozenset[int], sights: Mapping[int, NcclSight]) -> set[object]:
    return {sights[world].node for world in pair}


def _of_pair(causes: Sequence[Cause], sights: Mapping[int, NcclSight], teams: Mapping[int, Team]) -> Blame:
    """One pair of ranks. Which of the two it is, Mycroft's spatial rule says: where a sender's data is under way and all that
    the receiver sends itself has arrived (1=2=3), the receiver; where a buffer is offered and the network takes nothing, the
    sender."""
    pair = frozenset(causes[0].worlds)
    mine = tuple(cause for cause in causes if frozenset(cause.worlds) == pair)
    links = {cause.link for cause in mine}
    rule, worlds = "pair", tuple(sorted(pair))
    if len(pair) == 1:
        rule = "local-network"
    elif len(links) == 1 and mine[0].link is not None:
        sender, receiver = mine[0].link
        if mine[0].state == "not_transmitted":
            rule, worlds = "sender-not-taken", (sender,)
        elif _all_arrived(teams, receiver):
            rule, worlds = "spatial", (receiver,)
    return Blame(
        kind="network",
        scope="flow",
        worlds=worlds,
        suspects=tuple(sorted(pair - set(worlds))),
        nodes=_nodes(worlds, sights),
        causes=mine,
        certain=False,
        rule=rule,
    )


def _all_arrived(teams: Mapping[int, Team], world: int) -> bool:
    """Tell whether all that a rank has given to the network has arrived."""
    of = [seen.flow for team in teams.values() for seen in team.flows.values() if seen.world == world]
    return all(flow.gpu_ready == flow.done for flow in of if flow.direction == "send")
