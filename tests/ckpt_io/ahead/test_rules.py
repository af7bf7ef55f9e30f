"""Which units a node fetches ahead, in which order: nodes together fetch each once, and none takes more than its room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.belonging import SOMEBODYS

SIZES = st.lists(st.integers(1, 40 << 20), max_size=60)


@given(SIZES, st.integers(1, 9))
def test_each_unit_has_one_node_that_fetches_it_and_all_nodes_plan_all_of_them(sizes: list[int], nodes: int) -> None:
    plans = [rules.plan(sizes, rules.Share(own, nodes), None) for own in range(nodes)]
    assert all(sorted(plan.order) == [*range(len(sizes))] and plan.left_out == () for plan in plans)
    stripes = rules.stripes(sizes)
    owners = [rules.owner(stripe, nodes) for stripe in stripes]
    for own, plan in enumerate(plans):
        mine = [number for number in range(len(sizes)) if owners[number] == own]
        assert [*plan.order[: len(mine)]] == mine, "its own come first, in the order in which they lie"


@given(SIZES, st.integers(1, 9), st.data())
def test_before_they_have_met_nodes_fetch_one_checkpoint_together(
    sizes: list[int], nodes: int, data: st.DataObject
) -> None:
    whose = st.integers(SOMEBODYS, nodes - 1)
    belongs = data.draw(st.none() | st.lists(whose, min_size=len(sizes), max_size=len(sizes)))
    early = [rules.early(sizes, rules.Share(own, nodes), None, belongs) for own in range(nodes)]
    fetched = [number for plan in early for number in plan.order]
    wanted = [number for number in range(len(sizes)) if belongs is None or belongs[number] != SOMEBODYS]
    assert sorted(fetched) == wanted, "each unit is fetched by one of them"
    for own, plan in enumerate(early):
        assert {*plan.order} <= {*rules.plan(sizes, rules.Share(own, nodes), None, belongs).order}, "none is in vain"
        assert belongs is None or all(belongs[number] in (rules.EVERYBODYS, own) for number in plan.order)
        assert rules.early(sizes, rules.Share(own, nodes), plan.planned_bytes // 2, belongs).planned_bytes <= (
            plan.planned_bytes // 2
        )


@given(SIZES, st.integers(0, 200 << 20))
def test_no_more_is_planned_than_there_is_room_for(sizes: list[int], room: int) -> None:
    plan = rules.plan(sizes, rules.Share(), room)
    assert plan.planned_bytes == sum(sizes[number] for number in plan.order) <= room
    assert sorted((*plan.order, *plan.left_out)) == [*range(len(sizes))]


@given(st.integers(0, 100), st.integers(1, 9), st.sets(st.integers(0, 8)))
def test_where_nodes_have_failed_all_who_know_it_turn_to_the_same_next_one(
    stripe: int, nodes: int, failed: set[int]
) -> None:
    found = rules.owner(stripe, nodes, failed)
    assert found not in failed
    assert (found == -1) == failed.issuperset(range(nodes))


def test_neighbours_belong_to_one_node() -> None:
    assert rules.stripes([16 << 20] * 5) == [0, 0, 1, 1, 2]
    assert rules.stripes([64 << 20, 1, 1]) == [0, 1, 1]


def test_a_pace_spaces_requests_and_forgets_what_was_not_used() -> None:
    pace = rules.Pace(100.0)
    assert [pace.wait_s(50, 0.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert pace.wait_s(50, 100.0) == 0.0
    assert rules.Pace(None).wait_s(1 << 40, 0.0) == 0.0


def test_what_was_fetched_is_given_back_when_memory_is_short() -> None:
    assert rules.is_short([(100, 10_000)], 0.05, 50)
    assert not rules.is_short([(600, 10_000)], 0.05, 50)
    assert rules.is_short([(600, 1_000)], 0.05, 1_000)
    assert rules.is_short([(600, 10_000), (10, 1_000)], 0.05, 1), "a cgroup of the job is, and the node is not"
    assert not rules.is_short([], 0.05, 1_000), "nothing is known: the kernel does not say"
