"""Which ranks do the same, which few do something else, and which parallel group these few have in common.

ByteRobust (section 5.1) groups the stacks of all training processes, children too, by text; the dominant groups are taken for
healthy, the group that the others share is evicted. Here stacks are normalised first, ranks that wait in a collective are told
from those that do not, and only ranks that should do the same are compared: the caller passes those of one parallel group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import msgspec

from robust_run.tracer.stacks.activity import BUSY_CPU
from robust_run.tracer.stacks.children import RANK_ROLE, has_nothing_to_do, role
from robust_run.tracer.stacks.normal import is_waiting, key, main_thread
from robust_run.tracer.types import BACKWARD, Group, ProcessSight, RankSight, ThreadStack

#: Clusters above this share of the ranks are no minority.
MINORITY = 0.25


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of which a process does the same."""

    ranks: tuple[int, ...]
    """In order."""
    frames: tuple[str, ...]
    """The stack that most of them have, innermost first: `train.py:40 step`."""
    waiting: bool
    """It waits for peers, or a child for its rank to ask for something."""
    role: str
    """`rank`, or what the children are: `DataLoader worker`, `compile worker`, else their command."""


def clusters(sights: Sequence[RankSight]) -> tuple[Cluster, ...]:
    """Cluster the newest main-thread stacks of all processes: those of the ranks first, the largest first.

    Stacks are equal if they are in the same functions, in any lines. Processes without a stack are in no cluster.
    """
    members: dict[tuple[str, bool, tuple[str, ...]], set[int]] = {}
    looks: dict[tuple[str, bool, tuple[str, ...]], Counter[tuple[str, ...]]] = {}
    for sight, process, stack in _newest(sights):
        role_of = role(process, stack)
        same = (role_of, _waits(sight, process, stack), key(stack, "L2"))
        members.setdefault(same, set()).add(sight.rank)
        looks.setdefault(same, Counter())[key(stack, "L1")] += 1
    found = [
        Cluster(ranks=tuple(sorted(ranks)), frames=looks[same].most_common(1)[0][0], waiting=same[1], role=same[0])
        for same, ranks in members.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.role != RANK_ROLE, one.role, -len(one.ranks), one.ranks)))


def suspects(found: Sequence[Cluster], world: int) -> tuple[Cluster, ...]:
    """Return the clusters that may be at fault among `world` compared ranks; none if all do the same.

    Those that do not wait and are few; if all wait, the smallest, provided it is smaller than another. Children are looked
    at only where the ranks themselves show nothing.
    """
    few = max(1, int(world * MINORITY))
    ranks = [one for one in found if one.role == RANK_ROLE]
    for kind in (ranks, [one for one in found if one.role != RANK_ROLE]):
        minority = tuple(one for one in kind if not one.waiting and len(one.ranks) <= few)
        if minority and len(kind) > 1:
            return minority
    if ranks and all(one.waiting for one in ranks):
        smallest = min(len(one.ranks) for one in ranks)
        if smallest < max(len(one.ranks) for one in ranks):
            return tuple(one for one in ranks if len(one.ranks) == smallest)
    return ()


def covering_group(ranks: Collection[int], groups: Sequence[Group]) -> Group | None:
    """Return the smallest group that has all the ranks, else the one that resembles them most (Jaccard); None if none does."""
    wanted = set(ranks)
    if not wanted:
        return None
    covering = [group for group in groups if wanted.issubset(group.ranks)]
    if covering:
        return min(covering, key=lambda group: len(group.ranks))
    touching = [group for group in groups if not wanted.isdisjoint(group.ranks)]
    return max(touching, key=lambda group: _jaccard(wanted, set(group.ranks)), default=None)


def _newest(sights: Sequence[RankSight]) -> Iterator[tuple[RankSight, ProcessSight, ThreadStack]]:
    """Yield each process that has one with its newest stack of the main thread."""
    for sight in sights:
        for process in sight.processes:
            stack = next((one for one in map(main_thread, reversed(process.stacks)) if one is not None), None)
            if stack is not None:
                yield sight, process, stack


def _waits(sight: RankSight, process: ProcessSight, stack: ThreadStack) -> bool:
    """Whether it waits for a peer, as the stack or the rank's newest records say; of a child, whether it has nothing to do."""
    if not process.is_rank:
        return has_nothing_to_do(stack)
    if is_waiting(stack):
        return True
    ops = sight.trace.ops if sight.trace is not None else ()
    newest = [op for op in ops[-64:] if op.thread == 0 and op.state in ("entered", "waiting")]
    if any(op.op != BACKWARD for op in newest):
        return True
    # A backward pass computes and waits in turns: it waits if it sleeps while a collective that C++ started goes on.
    in_flight = any(op.state == "waiting" for op in sight.recorded)
    return bool(newest) and in_flight and process.cpu < BUSY_CPU


def _jaccard(one: set[int], other: set[int]) -> float:
    return len(one & other) / len(one | other)
