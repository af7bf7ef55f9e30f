"""Every fault that shows in rings: the verdict names the rank and the kind, wherever in the world and in a step it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracer.verdict.looking import settled
from tracer.verdict.scenes import FAULTS, LAYOUTS, Call, Fault, Layout, World, faulty, flat, spots

from robust_run.tracer.types import TraceVerdict
from robust_run.tracer.verdict import RankPatience, look


def verdict_on(world: World, **scene: float) -> TraceVerdict:
    assert world.stuck, "the fault stopped nobody"
    found = settled(world.scene(**scene))
    assert found is not None
    assert len(found.sentence) <= 250 and "\n" not in found.sentence
    assert len(found.evidence) <= 40
    return found


def where_it_shows(layout: Layout, fault: Fault, rank: int) -> list[int]:
    return [at for at in spots(layout, fault, rank) if faulty(layout, fault, rank, at).stuck]


CASES = [
    pytest.param(layout, fault, rank, id=f"{layout.name}-{fault.name}-{rank}")
    for layout in LAYOUTS.values()
    for fault in FAULTS.values()
    for rank in (0, layout.size // 2, layout.size - 1)
    if spots(layout, fault, rank)
]


@pytest.mark.parametrize(("layout", "fault", "rank"), CASES)
def test_the_culprit_is_named_at_the_first_middle_and_last_rank(layout: Layout, fault: Fault, rank: int) -> None:
    places = where_it_shows(layout, fault, rank)
    for at in {*places[:1], *places[-1:]}:
        found = verdict_on(faulty(layout, fault, rank, at))
        assert (found.kind, found.ranks) == (fault.kind, (rank,)), found.sentence
        assert found.over_evicted == ()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_fault_at_any_place_of_any_step_names_its_rank(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(sorted(LAYOUTS))).__str__()
    world = LAYOUTS[layout]
    fault = FAULTS[data.draw(st.sampled_from(sorted(FAULTS)))]
    rank = data.draw(st.integers(0, world.size - 1))
    places = spots(world, fault, rank)
    if not places:
        return
    ran = faulty(
        world, fault, rank, data.draw(st.sampled_from(places)), step=data.draw(st.integers(2, 9)), eager=data.draw(st.booleans())
    )  # fmt: skip
    if not ran.stuck:
        return
    found = verdict_on(ran, waited_s=data.draw(st.floats(5.0, 300.0)))
    assert (found.kind, found.ranks) == (fault.kind, (rank,)), found.sentence


def test_in_the_first_step_a_hang_and_a_mismatch_are_as_clear() -> None:
    for name in ("sleep", "stop", "exit 0", "size", "dtype", "operation"):
        found = verdict_on(faulty(LAYOUTS["TP2xDP2"], FAULTS[name], 3, 2, step=1))
        assert (found.kind, found.ranks) == (FAULTS[name].kind, (3,)), found.sentence


def test_two_ranks_that_are_stuck_at_once_are_both_named() -> None:
    layout = LAYOUTS["TP2xDP2xPP2"]
    programs = layout.programs(8)
    for rank in (2, 5):
        programs[rank][4] = [Call("stuck")]
    found = verdict_on(World(layout.groups, flat(programs)).run())
    assert (found.kind, found.ranks) == ("hang", (2, 5))
    assert "ranks 2 and 5" in found.sentence


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_rank_that_never_comes_to_init_or_destroy(rank: int) -> None:
    layout = LAYOUTS["DP4"]
    for position, what in ((0, "init_process_group"), (-1, "destroy_process_group")):
        programs = layout.programs(3)
        programs[rank][position] = [*programs[rank][position][:-1], Call("stuck", op="setup.py:7 prepare")]
        found = verdict_on(World(layout.groups, flat(programs)).run())
        assert (found.kind, found.ranks) == ("hang", (rank,))
        assert f"never came to {what}" in found.sentence and "setup.py:7 prepare" in found.sentence


def test_a_rank_whose_dataloader_worker_was_killed() -> None:
    world = faulty(LAYOUTS["DP4"], FAULTS["sleep"], 1, 1)
    world.lost_children[1] = ("DataLoader worker 4711 was killed by signal 9",)
    found = verdict_on(world)
    assert (found.kind, found.ranks, found.rule) == ("hang", (1,), "dataloader")
    assert "4711" in found.sentence


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_dead_link_is_a_stall_of_the_communication(rank: int) -> None:
    layout = LAYOUTS["TP2xDP2"]
    programs = flat([program[1:] for program in layout.programs(3)])
    world = World(layout.groups, programs, frozen={rank}).run()
    assert look(world.scene(waited_s=6.0), RankPatience()).verdict is None
    found = verdict_on(world, waited_s=11.0)
    assert found.kind == "comm_stall"
    assert rank in found.ranks and found.confidence != "high"
    assert len(found.ranks) == 1 or set(found.over_evicted) == set(found.ranks)


def test_groups_without_a_description_are_no_obstacle() -> None:
    from tracer.verdict.scenes import tensor_and_data

    layout = tensor_and_data(described=False)
    for name in ("skipped", "swapped", "sleep", "size"):
        for at in where_it_shows(layout, FAULTS[name], 2)[:2]:
            found = verdict_on(faulty(layout, FAULTS[name], 2, at))
            assert (found.kind, found.ranks) == (FAULTS[name].kind, (2,)), found.sentence


def test_a_step_longer_than_the_ring_is_judged_by_its_peers() -> None:
    base = LAYOUTS["TP2xDP2"]

    def long_step(rank: int, number: int) -> list[Call]:
        tp, dp = str(1 + rank // 2), str(3 + rank % 2)
        layers = [
            call
            for layer in range(30)
            for call in (
                Call("collective", tp, "all_reduce", 100),
                Call("collective", tp, "all_gather", 100),
                *([Call("collective", dp, "reduce_scatter", 100)] if layer % 3 else []),
            )
        ]
        return [*layers, Call("collective", "0", "all_reduce", 1)]

    layout = Layout("long", 4, base.groups, long_step)
    for rank in range(4):
        found = verdict_on(faulty(layout, FAULTS["swapped"], rank, 41, step=3, steps=4))
        assert (found.kind, found.ranks) == ("desync", (rank,)), found.sentence


@pytest.mark.parametrize("size", [16, 64])
def test_larger_worlds(size: int) -> None:
    from tracer.verdict.scenes import data_parallel

    layout = data_parallel(size)
    for name in ("sleep", "size", "skipped"):
        found = verdict_on(faulty(layout, FAULTS[name], size - 2, 2, step=3, steps=5))
        assert (found.kind, found.ranks) == (FAULTS[name].kind, (size - 2,)), found.sentence


@pytest.mark.parametrize("collectives", [3, 30])
def test_of_a_circle_in_which_all_do_the_same_nobody_is_the_odd_one(collectives: int) -> None:
    groups = {"0": ((0, 1, 2, 3), "default_pg")}

    def program(rank: int) -> list[Call]:
        receives = [Call("recv", peer=(rank + 1) % 3)] if rank < 3 else []
        calls = [Call("collective", op="all_reduce")] * collectives
        return [Call("init"), *calls, *receives, Call("collective", op="all_reduce")]

    found = verdict_on(World(groups, [program(rank) for rank in range(4)]).run())
    assert (found.rule, found.ranks) == ("cycle", (0, 1, 2))
