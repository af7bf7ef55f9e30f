"""Which ranks do the same work: those of one pipeline stage. Pure.

The program says nothing about stages, but its communication does. Ranks that send to each other point to point belong to one
pipeline, each to another stage of it. Collectives join ranks of different pipelines (data parallel) or of none into a stage; a
group that would put two ranks of one pipeline into a stage (the world, the embedding group of first and last stage) joins none.
Ring attention sends point to point too: its ranks are then compared along the other groups only, which misses, never accuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from robust_run.tracer.types import P2P, WORLD, Group, RankTrace


def stages(
    ranks: Collection[int], groups: Sequence[Group], p2p_pairs: Collection[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the ranks by stage, in order of their first rank. Without point-to-point pairs all are of one stage.

    `groups`: those that have collectives. Ranks that are not among `ranks` join others all the same, but are not returned.
    """
    pairs = [(a, b) for a, b in p2p_pairs if a != b and a >= 0 and b >= 0]
    wanted = sorted(set(ranks))
    if not pairs:
        return (tuple(wanted),) if wanted else ()
    pipeline = _Sets()
    for a, b in pairs:
        pipeline.join((a, b))
    stage = _Sets()
    taken: dict[int, set[int]] = {}  # root of a stage: the pipelines it has a rank of
    for members in sorted({tuple(sorted(set(group.ranks))) for group in groups}, key=lambda m: (len(m), m)):
        roots = {stage.root(rank) for rank in members}
        parts = [taken.get(root, {pipeline.root(root)}) for root in roots]
        together = set().union(*parts)
        if len(together) == sum(map(len, parts)):
            stage.join(members)
            taken[stage.root(members[0])] = together
    found: dict[int, list[int]] = {}
    for rank in wanted:
        found.setdefault(stage.root(rank), []).append(rank)
    return tuple(tuple(members) for members in found.values())


def layout_of(traces: Iterable[RankTrace]) -> tuple[tuple[Group, ...], frozenset[tuple[int, int]]]:
    """Return what `stages` asks for from the rings of all ranks: their groups, and who sends to or receives from whom."""
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    pairs = set()
    for trace in traces:
        for group in trace.groups:
            if group.name != WORLD:
                groups.setdefault((group.name, group.ranks), group)
        for op in trace.ops:
            if op.op in P2P and op.peer >= 0 and op.peer != trace.rank:
                pairs.add((min(trace.rank, op.peer), max(trace.rank, op.peer)))
    return tuple(groups[key] for key in sorted(groups)), frozenset(pairs)


class _Sets:
    """Disjoint sets of ranks; each rank begins in one of its own."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def root(self, rank: int) -> int:
        while (parent := self._parent.get(rank, rank)) != rank:
            self._parent[rank] = self._parent.get(parent, parent)
            rank = parent
        return rank

    def join(self, ranks: Iterable[int]) -> None:
        roots = sorted({self.root(rank) for rank in ranks})
        for root in roots[1:]:
            self._parent[root] = roots[0]
