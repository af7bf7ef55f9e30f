"""Which way data goes in NCCL's double binary tree, for what a GPU waits for depends on it. Pure.

Up the tree a GPU needs what its children send, down the tree what its parent sends. Flows tell the edges, not which end is up;
but the two trees that NCCL builds over n nodes are always the same (Sanders, Speck, Träff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009): in the first, node 0 is on top and a node lies as high as its number has zero
bits at its end; the second is its mirror image where n is even, else it is moved on by one.
"""

from __future__ import annotations

from collections.abc import Collection


def first_parents(count: int) -> list[int | None]:
    """Return the parent of each node in the first tree; the top has none."""
    parents: list[int | None] = [None]
    for node in range(1, count):
        low = node & -node
        above = (node & ~low) | (low << 1)
        parents.append(above if above < count else node & ~low)
    return parents


def second_parents(count: int) -> list[int | None]:
    """Return the parent of each node in the second tree."""
    first = first_parents(count)

    def moved(node: int) -> int:
        return count - 1 - node if count % 2 == 0 else (node + 1) % count

    parents: list[int | None] = [None] * count
    for node, parent in enumerate(first):
        parents[moved(node)] = None if parent is None else moved(parent)
    return parents


def parents_for(count: int, edges: Collection[tuple[int, int]], prefer_second: bool) -> list[int | None] | None:
    """Return the parents in the tree that has all of these directed edges; None: they are those of no tree (but of a ring, say).

    Every edge must be there in both directions. `prefer_second` decides where both trees would do, as with two nodes.
    """
    if count < 2 or not edges or any((there, here) not in edges for here, there in edges):
        return None
    trees = [first_parents(count), second_parents(count)]
    for parents in reversed(trees) if prefer_second else trees:
        if all(parents[here] == there or parents[there] == here for here, there in edges):
            return parents
    return None
