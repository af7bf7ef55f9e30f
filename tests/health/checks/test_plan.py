"""Which checks run where: pairs so that a bad node is in two of them, groups so that slow ones meet in one node."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.health.checks.plan import CheckRound, MeetingPlace, Wish, orders, parse_only, plan, rounds_of
from robust_run.health.checks.types import CHECKS, NodeFacts


def nodes(count: int, devices: tuple[str, ...] = ("cpu",)) -> list[NodeFacts]:
    return [NodeFacts(name=f"n{number}", devices=devices) for number in range(count)]


def test_one_node_is_checked_alone_and_it_is_said_what_is_left_out() -> None:
    made = plan(nodes(1), Wish())
    assert [each.check for each in made.rounds] == ["compute", "model", "memory", "disk", "exchange"]
    assert made.left_out == ("neighbours: there is one node", "allreduce: there is one node")


def test_its_time_is_bounded_by_the_limits_of_its_rounds() -> None:
    made = plan(nodes(6), Wish(limit_s=30.0, seconds=2.0))
    assert made.limit_s == 30.0 * len(made.rounds)
    assert made.expected_s < made.limit_s


def test_checks_keep_their_order_whatever_was_typed() -> None:
    assert parse_only("disk, compute") == ("compute", "disk")
    assert [each.check for each in plan(nodes(1), Wish(only=("disk", "compute"))).rounds] == ["compute", "disk"]


@pytest.mark.parametrize("typed", ["", " , ", "compute,speed"])
def test_unknown_checks_are_refused_with_the_list_of_all(typed: str) -> None:
    with pytest.raises(UserError, match="compute, model, memory"):
        parse_only(typed)


@given(st.integers(2, 60))
def test_every_node_meets_both_its_neighbours_and_no_two_at_the_same_time(count: int) -> None:
    rounds = rounds_of("neighbours", nodes(count))
    for each in rounds:
        members = [name for group in each.groups for name in group]
        assert len(members) == len(set(members))
    met = Counter(name for each in rounds for group in each.groups for name in group)
    assert set(met.values()) == {1 if count == 2 else 2}
    assert len(rounds) == (1 if count == 2 else 2 if count % 2 == 0 else 3)


@given(st.integers(4, 200))
def test_two_nodes_share_one_group_of_allreduce_at_most(count: int) -> None:
    shared: Counter[frozenset[str]] = Counter()
    for each in rounds_of("allreduce", nodes(count)):
        for group in each.groups:
            assert len(group) > 1
            shared.update(frozenset((one, other)) for one in group for other in group if one < other)
    assert max(shared.values()) == 1


def test_a_process_for_each_device_of_a_group_meets_the_others() -> None:
    facts = {node.name: node for node in nodes(2, ("cuda:0", "cuda:1"))}
    made = rounds_of("neighbours", list(facts.values()))[0]
    found = orders(made, facts, Wish(), {"n0": MeetingPlace(address="10.0.0.1", port=4711, listen_fd=9)})
    meetings = [order.meeting for name in ("n0", "n1") for order in found[name]]
    assert [(each.rank, each.listen_fd) for each in meetings if each] == [(0, 9), (1, -1), (2, -1), (3, -1)]
    assert {each.nodes for each in meetings if each} == {("n0", "n0", "n1", "n1")}
    assert [order.device for order in found["n1"]] == ["cuda:0", "cuda:1"]


def test_checks_of_a_host_take_one_process_whatever_its_devices() -> None:
    facts = {node.name: node for node in nodes(1, ("cuda:0", "cuda:1"))}
    made = CheckRound(check="memory", number=0, groups=(("n0",),))
    assert [order.device for order in orders(made, facts, Wish(), {})["n0"]] == ["cpu"]


def test_nodes_need_names_of_their_own() -> None:
    with pytest.raises(UserError, match="names of their own"):
        plan([NodeFacts(name="a"), NodeFacts(name="a")], Wish())


def test_every_check_has_a_program_and_a_description() -> None:
    from importlib.util import find_spec

    from robust_run.health.checks.show import WHAT

    assert set(WHAT) == set(CHECKS)
    for name in CHECKS:
        assert find_spec(f"robust_run.health.diagnostics.{name}") is not None
