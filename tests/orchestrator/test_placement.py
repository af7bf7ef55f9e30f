"""Where a member is started."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.orchestrator.names import MemberName
from robust_run.orchestrator.placement import can_ever_fit, occupy, place, vacate
from robust_run.orchestrator.state import Member, Node
from robust_run.orchestrator.words import RoleSpec


def role(**more: int) -> RoleSpec:
    """Return a role."""
    return RoleSpec(name="rollout", command=("a.py",), **more)  # type: ignore[arg-type]


def member(index: int = 0, *nodes: str) -> Member:
    """Return a member that ran on nodes before."""
    return Member(name=MemberName("rollout", index), nodes=nodes)


def test_it_comes_back_to_where_it_ran_if_there_is_room() -> None:
    nodes = {"a": Node(9), "b": Node(2)}
    assert place(role(), member(0, "b"), nodes) == (("b",), ())
    assert place(role(nproc=3), member(0, "b"), nodes) == (("a",), ())


def test_members_are_spread() -> None:
    nodes = {"a": Node(4), "b": Node(4)}
    found: list[str] = []
    for index in range(4):
        each = member(index)
        where = place(role(), each, nodes)
        assert where is not None
        occupy(role(), each, nodes, where)
        found += where[0]
    assert found == ["a", "b", "a", "b"]


def test_no_two_members_have_a_gpu_and_what_is_freed_is_given_again() -> None:
    nodes, two = {"a": Node(99, 4)}, role(devices=2)
    for index in range(2):
        each = member(index)
        where = place(two, each, nodes)
        assert where is not None
        occupy(two, each, nodes, where)
    assert sorted(nodes["a"].devices_used.values()) == [(0, 1), (2, 3)]
    assert place(two, member(2), nodes) is None
    vacate(member(0), nodes)
    assert place(two, member(2), nodes) == (("a",), (0, 1))


def test_a_member_of_several_nodes_has_the_same_gpus_on_each() -> None:
    nodes = {"a": Node(9, 4), "b": Node(9, 4), "c": Node(9, 4)}
    nodes["a"].devices_used[MemberName("x", 0)] = (0, 1)
    nodes["b"].devices_used[MemberName("x", 1)] = (1, 2)
    assert place(role(nodes=2, devices=2), member(), nodes) == (("a", "c"), (2, 3))
    assert place(role(nodes=3, devices=1), member(), nodes) == (("a", "b", "c"), (3,))
    assert place(role(nodes=3, devices=2), member(), nodes) is None
    assert place(role(nodes=4), member(), nodes) is None


def test_what_no_empty_node_could_hold_is_known_before() -> None:
    nodes = {"a": Node(4, 2), "b": Node(4, 4)}
    nodes["b"].used[MemberName("x", 0)] = 4
    assert can_ever_fit(role(nproc=4, devices=1), nodes)
    assert not can_ever_fit(role(nproc=5), nodes)
    assert not can_ever_fit(role(nproc=4, devices=1, nodes=2), nodes)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4),
    wanted=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)), max_size=12),
)
def test_nodes_are_never_overfull(sizes: list[tuple[int, int]], wanted: list[tuple[int, int, int]]) -> None:
    nodes = {str(index): Node(*size) for index, size in enumerate(sizes)}
    for index, (nproc, count, devices) in enumerate(wanted):
        each, asked = member(index), role(nproc=nproc, nodes=count, devices=devices)
        where = place(asked, each, nodes)
        if where is None:
            continue
        assert len(set(where[0])) == count
        assert len(where[1]) == nproc * devices
        assert can_ever_fit(asked, nodes)
        occupy(asked, each, nodes, where)
        for node in nodes.values():
            used = [device for found in node.devices_used.values() for device in found]
            assert node.free >= 0
            assert len(set(used)) == len(used)
