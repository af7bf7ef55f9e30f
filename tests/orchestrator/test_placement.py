"""Where a member is started."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import Member, Node
from robust_run.orchestrator.rules.placement import needs, occupy, place, vacate, why_never


def role(**more: int | str) -> RoleSpec:
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
    assert not why_never(role(nproc=4, devices=1), nodes)
    assert why_never(role(nproc=5), nodes)
    assert why_never(role(nproc=4, devices=1, nodes=2), nodes)


def test_a_role_runs_only_where_its_label_is() -> None:
    nodes = {"a": Node(9, labels=("gpu",)), "b": Node(9, labels=("cpu", "het-1")), "c": Node(9)}
    assert place(role(where="het-1"), member(), nodes) == (("b",), ())
    assert place(role(where="gpu"), member(0, "c"), nodes) == (("a",), ())
    assert place(role(where="gpu", nodes=2), member(), nodes) is None
    assert place(role(), member(0, "b"), nodes) == (("b",), ())
    assert needs(role(where="gpu")) == "room for 1 workers on 1 node labelled 'gpu'"
    assert why_never(role(where="big"), nodes) == "no node has the label 'big', only cpu, gpu, het-1"
    assert why_never(role(where="big"), {"a": Node(9)}) == "no node has the label 'big'"
    assert why_never(role(where="gpu", nodes=2), nodes) == "there is 1 node labelled 'gpu' with up to 0 GPUs"


def test_cpus_count_for_those_who_ask_for_them() -> None:
    nodes = {"a": Node(99, cpus=4), "b": Node(99, cpus=16)}
    asks = role(cpus=2, nproc=2)
    found: list[str] = []
    for index in range(5):
        each = member(index)
        where = place(asks, each, nodes)
        assert where is not None
        occupy(asks, each, nodes, where)
        found += where[0]
    assert sorted(found) == ["a", "b", "b", "b", "b"]
    assert place(asks, member(5), nodes) is None
    assert place(role(), member(5), nodes) is not None
    vacate(member(found.index("a")), nodes)
    assert place(asks, member(5), nodes) == (("a",), ())
    assert why_never(role(cpus=17), nodes) == "there are 2 nodes with up to 0 GPUs and 16 CPUs"
    assert needs(role(cpus=8, devices=1, nproc=2)) == "room for 2 workers with 2 GPUs and 16 CPUs on 1 node"


def test_members_that_ask_for_no_cpus_are_spread_by_number_whatever_the_nodes_have() -> None:
    nodes = {"a": Node(99, cpus=1), "b": Node(99, cpus=64)}
    found: list[str] = []
    for index in range(6):
        each = member(index)
        where = place(role(), each, nodes)
        assert where is not None
        occupy(role(), each, nodes, where)
        found += where[0]
    assert found == ["a", "b"] * 3


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
        assert not why_never(asked, nodes)
        occupy(asked, each, nodes, where)
        for node in nodes.values():
            used = [device for found in node.devices_used.values() for device in found]
            assert node.free >= 0
            assert len(set(used)) == len(used)
