"""Who waits for whom, over all groups and point-to-point calls: ranks that all waits end at, and deadlocks.

The graph has ranks and places as nodes: a rank points to the places it waits in, a place to the ranks that have not come. A
rank that is waited for and waits for no rank is a sink, and the cause of the waits that lead to it. A strongly connected part is
a deadlock in any case, since a collective needs all its members. Waiting for any sender (`recv_any`) is left out
of deadlocks, because one of many suffices. Method: wait-for graphs of distributed systems; tracing.md calls the parts sinks
and cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from robust_run.tracer.verdict.picture import Picture, WaitPlace


def sinks(picture: Picture) -> dict[int, list[WaitPlace]]:
    """Return each rank that is waited for and waits nowhere itself, with the places where it is missing."""
    found: dict[int, list[WaitPlace]] = {}
    waiting = picture.waiting
    for here in picture.places:
        if not here.waiters:
            continue
        for rank in here.missing:
            if rank not in waiting:
                found.setdefault(rank, []).append(here)
    return found


def dependents(picture: Picture, ranks: Iterable[int]) -> set[int]:
    """Return all ranks that wait for the given ones, directly or through others."""
    by_missing: dict[int, list[WaitPlace]] = {}
    for here in picture.places:
        for rank in here.missing:
            by_missing.setdefault(rank, []).append(here)
    reached: set[int] = set()
    seen_places: set[int] = set()
    pending = list(ranks)
    while pending:
        for here in by_missing.get(pending.pop(), ()):
            if id(here) in seen_places:
                continue
            seen_places.add(id(here))
            new = [waiter for waiter in here.waiters if waiter not in reached]
            reached.update(new)
            pending.extend(new)
    return reached


def deadlocked(picture: Picture, older_than_s: float, among: Sequence[WaitPlace] | None = None) -> tuple[int, ...]:
    """Return the ranks that wait for each other in a circle, all of them for longer than the given time.

    `among`: only these places count.
    """
    places = [
        here
        for here in (picture.places if among is None else among)
        if here.missing and not here.any_sender and picture.waited_s(here) >= older_than_s
    ]
    # Ranks are nodes 0..n-1, places follow.
    ranks = sorted({rank for here in places for rank in (*here.waiters, *here.missing)})
    index = {rank: position for position, rank in enumerate(ranks)}
    edges: list[list[int]] = [[] for _ in range(len(ranks) + len(places))]
    for position, here in enumerate(places, len(ranks)):
        for rank in here.waiters:
            edges[index[rank]].append(position)
        edges[position] = [index[rank] for rank in here.missing]
    found: list[int] = []
    for component in _components(edges):
        if len(component) > 1:
            found.extend(ranks[node] for node in component if node < len(ranks))
    return tuple(sorted(found))


def nobody_sends(picture: Picture, older_than_s: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return ranks that receive from any rank although all that could send wait for them, and all that wait in vain.

    A wait in a collective is in vain if one of its missing is stuck, one for any sender if all are. What is left when ranks
    with a hope are taken out again and again is stuck (a deadlock in the AND-OR model of wait-for graphs).
    """
    places = [here for here in picture.places if here.missing and picture.waited_s(here) >= older_than_s]
    if not any(here.any_sender for here in places):
        return (), ()  # what follows takes a round for each stage of a pipeline
    stuck = {rank for here in places for rank in here.waiters}
    stuck -= {rank for rank in stuck if any(here not in places for here in picture.waiting.get(rank, ()))}
    while True:
        hopeful = {
            rank
            for here in places
            for rank in here.waiters
            if rank in stuck and not (stuck.issuperset if here.any_sender else _meets(stuck))(here.missing)
        }
        if not hopeful:
            break
        stuck -= hopeful
    receivers = {rank for here in places if here.any_sender for rank in here.waiters if rank in stuck}
    return tuple(sorted(receivers)), tuple(sorted(stuck))


def _meets(stuck: set[int]) -> Callable[[Iterable[int]], bool]:
    return lambda ranks: not stuck.isdisjoint(ranks)


def _components(edges: list[list[int]]) -> list[list[int]]:
    """Return the strongly connected components (Tarjan 1972, without recursion)."""
    number = [0] * len(edges)
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    components: list[list[int]] = []
    counter = 0
    for root in range(len(edges)):
        if number[root]:
            continue
        work: list[tuple[int, int]] = [(root, 0)]
        while work:
            node, child = work.pop()
            if child == 0:
                counter += 1
                number[node] = low[node] = counter
                stack.append(node)
                on_stack[node] = True
            else:
                low[node] = min(low[node], low[edges[node][child - 1]])
            follow = _next_child(edges[node], child, number, low, on_stack, node)
            if follow >= 0:
                work += [(node, follow + 1), (edges[node][follow], 0)]
            elif low[node] == number[node]:
                components.append(_pop_component(stack, on_stack, node))
    return components


def _next_child(
    children: list[int], start: int, number: list[int], low: list[int], on_stack: list[bool], node: int
) -> int:
    """Return the position of the next child that was not visited, having noted those that were; -1 when done."""
    for position in range(start, len(children)):
        child = children[position]
        if not number[child]:
            return position
        if on_stack[child]:
            low[node] = min(low[node], number[child])
    return -1


def _pop_component(stack: list[int], on_stack: list[bool], node: int) -> list[int]:
    component: list[int] = []
    while True:
        top = stack.pop()
        on_stack[top] = False
        component.append(top)
        if top == node:
            return component
