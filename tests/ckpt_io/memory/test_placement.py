"""Which node keeps whose copies: each keeps one other's, and none of its own parallel groups where that can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory.placement import peers_of

Nodes = list[tuple[str, frozenset[int]]]


def layout(count: int, per_node: int) -> Nodes:
    return [(f"node-{at}", frozenset(range(at * per_node, (at + 1) * per_node))) for at in range(count)]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Nodes, list[frozenset[int]]]:
    nodes = layout(draw(st.integers(2, 8)), draw(st.integers(1, 3)))
    ranks = st.sampled_from(sorted(rank for _, each in nodes for rank in each))
    return nodes, draw(st.lists(st.frozensets(ranks, max_size=6), max_size=6))


def sharing(nodes: Nodes, groups: list[frozenset[int]], shift: int) -> int:
    """How many nodes share a group, one that does not reach all of them, with the node that many places further."""
    found = 0
    for at, (_, mine) in enumerate(nodes):
        theirs = nodes[(at + shift) % len(nodes)][1]
        telling = [group for group in groups if not all(group & ranks for _, ranks in nodes)]
        found += any(group & mine and group & theirs for group in telling)
    return found


@given(jobs())
def test_each_node_keeps_one_others_copies_and_as_few_as_possible_of_its_groups(
    job: tuple[Nodes, list[frozenset[int]]],
) -> None:
    nodes, groups = job
    names = [name for name, _ in nodes]
    found = peers_of(nodes, groups)
    assert sorted(found) == sorted(found.values()) == sorted(names)
    assert all(node != peer for node, peer in found.items())
    shifts = {(names.index(peer) - names.index(node)) % len(names) for node, peer in found.items()}
    assert len(shifts) == 1
    assert sharing(nodes, groups, shifts.pop()) == min(sharing(nodes, groups, each) for each in range(1, len(nodes)))


def test_a_group_of_neighbours_sends_to_another() -> None:
    pipelines = [frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})]
    found = peers_of(layout(8, 1), pipelines)
    assert found["node-0"] == "node-4" and found["node-7"] == "node-3"
    found = peers_of(layout(4, 1), [frozenset({0, 2}), frozenset({1, 3})])
    assert found["node-0"] == "node-1"


def test_without_groups_the_peer_is_far_away() -> None:
    assert peers_of(layout(6, 2), [])["node-1"] == "node-4"
    assert peers_of(layout(2, 2), [frozenset(range(4))]) == {"node-0": "node-1", "node-1": "node-0"}


def test_a_node_that_is_alone_has_a_standby_or_nobody() -> None:
    assert peers_of(layout(1, 8), [], ("spare-0", "spare-1")) == {"node-0": "spare-0"}
    assert peers_of(layout(1, 8), []) == {}
    assert peers_of([], []) == {}


def test_a_thousand_nodes_of_several_groups_take_no_time_to_speak_of() -> None:
    nodes = layout(1000, 8)
    data = [frozenset(range(local, 8000, 8)) for local in range(8)]
    pipelines = [frozenset(range(at * 8, at * 8 + 80)) for at in range(0, 1000, 10)]
    found = peers_of(nodes, data + pipelines)
    assert found["node-0"] == "node-500"
