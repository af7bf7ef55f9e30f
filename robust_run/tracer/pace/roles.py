"""Which nodes do the same work, and may be compared: those whose ranks are of the same pipeline stages and hold the same experts.

The program says neither, but its communication does: stages as in `pace.stages`; ranks at the same place in groups that do
all-to-all hold the same experts. Where too few nodes share both, those of the same stages are peers. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from robust_run.tracer.pace.stages import layout_of, stages
from robust_run.tracer.types import P2P, RankTrace

LEAST_PEERS = 3
"""Of two nodes nobody can tell which is the odd one."""
FEWEST_OPS = 128
"""That none of the newest calls is point to point proves nothing where fewer are told of each rank, as of very many ranks:
between two transfers of a stage lie the calls of its layers."""
_EXPERTS = "all_to_all"


def roles_of(
    nodes: Mapping[str, Collection[int]], traces: Sequence[RankTrace], told: int = FEWEST_OPS
) -> dict[str, str]:
    """Return what each node does, as a word for people; nodes with the same word are peers. Empty: it is not known.

    Args:
        nodes: ranks by the name of the node.
        told: how many calls of each rank may be in its trace.
        traces: what the ranks' rings show. All ranks are needed: whose calls are not seen may be of any stage.
    """
    wanted = {rank for ranks in nodes.values() for rank in ranks}
    if not wanted or not wanted <= {trace.rank for trace in traces}:
        return {}
    sends = {trace.rank for trace in traces if any(op.op in P2P for op in trace.ops)}
    if sends and not wanted <= sends:  # of some ranks the newest calls do not show with whom they are in a pipeline
        return {}
    if not sends and told < FEWEST_OPS and max(len(trace.ops) for trace in traces) >= told:
        return {}
    stage_of = {rank: number for number, ranks in enumerate(stages(wanted, *layout_of(traces))) for rank in ranks}
    experts_of = _experts(traces)
    coarse = {node: frozenset(stage_of[rank] for rank in ranks) for node, ranks in nodes.items()}
    fine = {
        node: frozenset(each for rank in ranks for each in experts_of.get(rank, ())) for node, ranks in nodes.items()
    }
    several = len(set(stage_of.values())) > 1
    by_both: dict[tuple[frozenset[int], frozenset[tuple[int, int]]], list[str]] = {}
    for node in nodes:
        by_both.setdefault((coarse[node], fine[node]), []).append(node)
    kinds = len({experts for _, experts in by_both})
    found: dict[str, str] = {}
    for (own, _), members in by_both.items():
        name = f"stage {'+'.join(map(str, sorted(own)))}" if several else "all"
        like = kinds > 1 and len(members) >= LEAST_PEERS
        found.update((node, f"{name}, experts as on {min(members)}" if like else name) for node in members)
    return found


def _experts(traces: Sequence[RankTrace]) -> dict[int, set[tuple[int, int]]]:
    """Return for each rank its places in groups that do all-to-all, with their sizes: the same place, the same experts."""
    found: dict[int, set[tuple[int, int]]] = {}
    for trace in traces:
        groups = {group.name: group.ranks for group in trace.groups}
        for name in {op.group for op in trace.ops if op.op == _EXPERTS}:
            ranks = groups.get(name, ())
            if trace.rank in ranks:
                found.setdefault(trace.rank, set()).add((len(ranks), ranks.index(trace.rank)))
    return found
