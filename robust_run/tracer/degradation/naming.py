"""Where a job became slower: what its ranks need now, against what they needed before. Pure.

All ranks meet in a step, so a step is longer because of those whose own work is, or because of what lies between them. Each rank
is compared with itself: stages, roles and kinds of machines may differ as they like.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.tracer.degradation.causes import (
    OF_DATA,
    OF_WAITING,
    OF_WORK,
    most_telling,
    shared_cause,
)
from robust_run.tracer.degradation.types import (
    BLIND,
    FAR_FROM_PEERS,
    IMBALANCE_COST,
    IMBALANCED,
    MOST_OF_NODE,
    NEARLY_ALL,
    OWN_PART,
    Cause,
    Cost,
    Degradation,
    Kind,
    Sample,
    Seen,
)


class Crew(msgspec.Struct, frozen=True):
    """Who takes part: rows of samples are in this order."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    """Of each rank."""
    on_gpus: bool = False
    """All times are of GPUs' clocks."""


Stages = Sequence[Sequence[int]]


def named(
    crew: Crew, before: Sample, now: Sample, stages: Stages, seen: Sequence[Seen], *, since_s: float
) -> Degradation:
    """Return where it is, and why as far as that was seen. `now` is slower than `before`."""
    grown_ms = now.step_ms - before.step_ms
    limit_ms = OWN_PART * grown_ms
    grew = [at for at in range(len(crew.ranks)) if now.own_ms[at] - before.own_ms[at] >= limit_ms]
    cost = Cost(now.step_ms, before.step_ms, len(crew.ranks), crew.on_gpus)
    if is_blind(crew, before) and is_blind(crew, now):
        return _blind(crew, before, now, seen, cost, since_s)
    if not grew:
        cause = most_telling(seen, OF_WAITING)
        nodes = tuple(sorted({one.node for one in seen if one.cause == cause})) if cause else ()
        few = nodes if cause == "network" and 2 * len(nodes) <= len(set(crew.nodes)) else ()
        return Degradation(
            kind="group", nodes=few, cause=cause, seen=_of(seen, cause, nodes), cost=cost, since_s=since_s
        )
    kind, stage = _where(crew, grew, stages)
    nodes = tuple(dict.fromkeys(crew.nodes[at] for at in grew))
    cause = _why(before, now, grew, nodes, seen, is_one=kind in ("rank", "node"))
    return Degradation(
        kind=kind,
        ranks=tuple(crew.ranks[at] for at in grew) if kind != "all" else (),
        nodes=nodes if kind in ("rank", "node") else (),
        stage=stage,
        cause=cause,
        seen=_of(seen, cause, nodes),
        cost=cost,
        since_s=since_s,
        own_ms=(_mean(before.own_ms, grew), _mean(now.own_ms, grew)),
        data_ms=(_mean(before.data_ms, grew), _mean(now.data_ms, grew)),
        far_from_peers=kind in ("rank", "node") and all(_is_far(crew, now, at, grew, stages) for at in grew),
    )


def is_blind(crew: Crew, sample: Sample) -> bool:
    """Whether hardly any rank is seen to wait: on GPUs that their own clocks do not time, or where all is work."""
    if crew.on_gpus or len(crew.ranks) < 2:
        return False
    return all(own_ms >= (1.0 - BLIND) * sample.step_ms for own_ms in sample.own_ms)


def _blind(crew: Crew, before: Sample, now: Sample, seen: Sequence[Seen], cost: Cost, since_s: float) -> Degradation:
    """Where nothing is known of who waits for whom, a cause that was seen on few nodes names them."""
    whole = tuple(dict.fromkeys(crew.nodes))
    everybody = range(len(crew.ranks))
    late = _mean(now.data_ms, everybody) - _mean(before.data_ms, everybody)
    grown_ms = now.step_ms - before.step_ms
    cause = shared_cause(seen, whole, (*OF_WORK, "network"))
    nodes: tuple[str, ...] = ()
    if not cause and late >= 0.5 * grown_ms:
        cause = "data"
    if not cause:
        cause = most_telling(seen, OF_WORK)
        nodes = tuple(sorted({one.node for one in seen if one.cause == cause and one.node in whole})) if cause else ()
    return Degradation(
        kind="node" if nodes else "all",
        ranks=tuple(rank for rank, node in zip(crew.ranks, crew.nodes, strict=True) if node in nodes),
        nodes=nodes,
        cause=cause,
        seen=_of(seen, cause, nodes or whole),
        cost=cost,
        since_s=since_s,
        is_blind=True,
    )


def _where(crew: Crew, grew: Sequence[int], stages: Stages) -> tuple[Kind, int | None]:
    """Return whether it is nearly all, a stage, whole nodes, or single ranks that became slower; and which stage."""
    size = len(crew.ranks)
    if size > 1 and len(grew) >= max(2, NEARLY_ALL * size):
        return ("all" if len(set(crew.nodes)) > 1 or size == len(grew) else "rank"), None
    slow = {crew.ranks[at] for at in grew}
    nodes = {crew.nodes[at] for at in grew}
    if len(nodes) > 1 and len(stages) > 1:
        for number, members in enumerate(stages):
            here = slow.intersection(members)
            if here == slow and len(members) > 1 and len(here) >= MOST_OF_NODE * len(members):
                return "stage", number
    sizes, hit = Counter(crew.nodes), Counter(crew.nodes[at] for at in grew)
    if len(nodes) < len(sizes) and all(hit[node] >= max(2, MOST_OF_NODE * sizes[node]) for node in nodes):
        return "node", None
    if 2 * len(grew) > size:
        return "all", None
    return "rank", None


def _why(
    before: Sample, now: Sample, grew: Sequence[int], nodes: Sequence[str], seen: Sequence[Seen], *, is_one: bool
) -> Cause:
    """Return why these ranks need longer: they wait for data, or what sensors saw on their nodes."""
    work_ms = sum(now.own_ms[at] - before.own_ms[at] for at in grew)
    late_ms = sum(now.data_ms[at] - before.data_ms[at] for at in grew)
    here = [one for one in seen if one.node in set(nodes)]
    among = OF_DATA if late_ms >= 0.5 * work_ms else OF_WORK
    cause = most_telling(here, among) if is_one else shared_cause(here, nodes, among)
    return cause or ("data" if among is OF_DATA else "")


def _of(seen: Sequence[Seen], cause: Cause, nodes: Sequence[str]) -> tuple[Seen, ...]:
    return tuple(one for one in seen if cause and one.cause == cause and one.node in set(nodes))


def _is_far(crew: Crew, now: Sample, at: int, grew: Sequence[int], stages: Stages) -> bool:
    """Whether a rank needs much longer than those that do the same work and did not become slower."""
    mine = next((set(members) for members in stages if crew.ranks[at] in members), set(crew.ranks))
    slow = set(grew)
    peers = [now.own_ms[i] for i, rank in enumerate(crew.ranks) if rank in mine and i not in slow]
    return bool(peers) and now.own_ms[at] >= FAR_FROM_PEERS * _median(peers)


def imbalance(crew: Crew, samples: Sequence[Sample], stages: Stages, *, since_s: float) -> Degradation | None:
    """Return the stage that has more work than the others, in all of these samples; None: none has."""
    if len(stages) < 2 or not samples or any(is_blind(crew, sample) for sample in samples):
        return None
    place = {rank: at for at, rank in enumerate(crew.ranks)}
    rows = [[place[rank] for rank in members if rank in place] for members in stages]
    if any(not row for row in rows):
        return None
    worst = set()
    found = (0.0, 0.0)
    for sample in samples:
        each_ms = [_median([sample.own_ms[at] for at in row]) for row in rows]
        most = max(range(len(each_ms)), key=lambda number: each_ms[number])
        others_ms = _median([each for number, each in enumerate(each_ms) if number != most])
        over_ms = each_ms[most] - max(each for number, each in enumerate(each_ms) if number != most)
        if each_ms[most] < IMBALANCED * others_ms or over_ms < IMBALANCE_COST * sample.step_ms:
            return None
        worst.add(most)
        found = (others_ms, each_ms[most])
    if len(worst) > 1:
        return None
    stage = worst.pop()
    step_ms = _median([sample.step_ms for sample in samples])
    return Degradation(
        kind="stage",
        ranks=tuple(crew.ranks[at] for at in rows[stage]),
        stage=stage,
        cause="work",
        cost=Cost(step_ms, max(step_ms - (found[1] - found[0]), 0.0), len(crew.ranks), crew.on_gpus),
        since_s=since_s,
        own_ms=found,
    )


def odd_group(taken_ms: Mapping[str, Sequence[float]], ratio: float = 1.5, least: int = 5) -> str:
    """Return the group whose calls take so many times as long as the same calls of others like it; empty: none stands out.

    `taken_ms`: by group, of groups of one kind; how long a call took once the last of its ranks had come to it.
    """
    usual = {name: _median(each) for name, each in taken_ms.items() if len(each) >= least}
    if len(usual) < 2:
        return ""
    slowest = max(usual, key=lambda name: usual[name])
    others = _median([each for name, each in usual.items() if name != slowest])
    return slowest if others > 0 and usual[slowest] >= ratio * others else ""


def _mean(values: Sequence[float], places: Sequence[int]) -> float:
    return math.fsum(values[at] for at in places) / len(places) if places else 0.0


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
