"""What is no fault: others wait, but for a rank that works; or nobody has waited for long."""

from __future__ import annotations

import msgspec
import pytest
from tracer.verdict.scenes import FAULTS, LAYOUTS, Call, World, faulty, flat, seen_as

from robust_run.tracer.types import Frame, ProcessSight, Scene, ThreadStack
from robust_run.tracer.verdict import RankPatience, look

PATIENCE = RankPatience()
TORCH = "/v/lib/python3.11/site-packages/torch"


def stuck_rank(rank: int = 0, waited_s: float = 6.0) -> Scene:
    return faulty(LAYOUTS["DP4"], FAULTS["sleep"], rank, 1).scene(waited_s=waited_s)


def in_function(*frames: Frame) -> tuple[tuple[ThreadStack, ...], ...]:
    stack = (ThreadStack(is_main=True, frames=frames),)
    return (stack, stack, stack)


WORKING = {
    "writes a checkpoint": {"io_bytes": 12_000_000},
    "is in torch.save": {
        "stacks": in_function(Frame("save", f"{TORCH}/serialization.py", 1), Frame("main", "/home/me/train.py", 9))
    },
    "compiles": {
        "cpu": 1.0,
        "stacks": in_function(
            Frame("compile_fx", f"{TORCH}/_inductor/compile_fx.py", 1), Frame("main", "/home/me/train.py", 9)
        ),
    },
}


@pytest.mark.parametrize("doing", WORKING)
def test_a_rank_that_works_may_keep_others_waiting_for_long(doing: str) -> None:
    for waited_s in (6.0, 60.0, 590.0):
        found = look(seen_as(stuck_rank(waited_s=waited_s), 0, **WORKING[doing]), PATIENCE)
        assert found.verdict is None
        assert found.again_s is not None and "rank 0" in found.reason
    late = look(seen_as(stuck_rank(waited_s=601.0), 0, **WORKING[doing]), PATIENCE).verdict
    assert late is not None and (late.kind, late.ranks, late.confidence) == ("hang", (0,), "low")
    assert late.at_work and not late.proven, "even when torch is about to end it"


def test_a_rank_that_spins_gets_twice_the_time() -> None:
    assert look(seen_as(stuck_rank(waited_s=6.0), 0, cpu=1.0), PATIENCE).verdict is None
    found = look(seen_as(stuck_rank(waited_s=10.5), 0, cpu=1.0), PATIENCE).verdict
    assert found is not None and found.ranks == (0,)


def test_a_rank_in_another_function_than_a_moment_ago_is_moving() -> None:
    before = seen_as(stuck_rank(waited_s=5.0), 0, stacks=in_function(Frame("evaluate", "/home/me/train.py", 70)))
    now = stuck_rank(waited_s=6.0)
    assert look(now, PATIENCE, previous=before).verdict is None
    assert look(now, PATIENCE, previous=stuck_rank(waited_s=5.0)).verdict is not None


def test_a_rank_in_uninterruptible_io_without_progress_is_a_hang_not_stopped() -> None:
    found = look(seen_as(stuck_rank(), 0, state="D", waits_in="nfs_wait"), PATIENCE).verdict
    assert found is not None and (found.kind, found.ranks) == ("hang", (0,))


def test_while_one_works_another_that_sleeps_gets_more_time() -> None:
    layout = LAYOUTS["DP4"]
    programs = layout.programs(4)
    for rank in (0, 3):
        programs[rank][2] = [Call("stuck")]
    world = World(layout.groups, flat(programs)).run()
    assert look(seen_as(world.scene(waited_s=6.0), 0, io_bytes=10**8), PATIENCE).verdict is None
    found = look(seen_as(world.scene(waited_s=10.5), 0, io_bytes=10**8), PATIENCE).verdict
    assert found is not None and found.ranks == (3,)


def test_nobody_waits_while_all_evaluate() -> None:
    layout = LAYOUTS["DP4"]
    programs = flat([[*program[:4], [Call("stuck", op="evaluate.py:9 run")]] for program in layout.programs(4)])
    world = World(layout.groups, programs).run()
    assert not world.stuck
    found = look(world.scene(waited_s=60.0), PATIENCE)
    assert (found.verdict, found.again_s) == (None, None)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_waits_that_are_short_lift_the_suspicion(layout) -> None:
    world = faulty(layout, FAULTS["sleep"], 0, 1)
    found = look(world.scene(waited_s=3.0), PATIENCE)
    assert (found.verdict, found.again_s) == (None, None)


def test_a_rank_that_has_just_made_progress_is_not_stuck() -> None:
    """Others wait at a barrier for two that still evaluate together."""
    scene = stuck_rank(2, waited_s=20.0)
    sight = scene.ranks[2]
    newest = msgspec.structs.replace(sight.trace.ops[-1], state="done", done_at_s=scene.at_s - 1.0)
    trace = msgspec.structs.replace(sight.trace, ops=(*sight.trace.ops[:-1], newest))
    ranks = list(scene.ranks)
    ranks[2] = msgspec.structs.replace(sight, trace=trace)
    found = look(msgspec.structs.replace(scene, ranks=tuple(ranks)), PATIENCE)
    assert found.verdict is None and found.again_s is not None


def test_uneven_inputs_that_have_gone_well_before_are_no_mismatch() -> None:
    groups = {"0": ((0, 1, 2), "default_pg")}
    uneven = [
        [
            Call("init"),
            *(Call("collective", op="all_gather", numel=-1) for _ in range(5)),
            *([Call("stuck")] if rank == 2 else []),
            Call("collective", op="all_gather", numel=-1),
        ]
        for rank in range(3)
    ]
    scene = World(groups, uneven).run().scene()
    scene = msgspec.structs.replace(
        scene,
        ranks=tuple(
            msgspec.structs.replace(
                sight,
                trace=msgspec.structs.replace(
                    sight.trace,
                    ops=tuple(msgspec.structs.replace(op, numel=100 + sight.rank) for op in sight.trace.ops),
                ),
            )
            for sight in scene.ranks
        ),
    )
    found = look(scene, PATIENCE).verdict
    assert found is not None and (found.kind, found.ranks) == ("hang", (2,))


def test_a_rank_on_a_node_that_does_not_answer_gets_the_longest_time() -> None:
    def without(waited_s: float) -> Scene:
        scene = stuck_rank(3, waited_s)
        return msgspec.structs.replace(scene, ranks=scene.ranks[:3], silent_nodes=("gpu-09",))

    assert look(without(30.0), PATIENCE).verdict is None
    found = look(without(601.0), PATIENCE).verdict
    assert found is not None and (found.ranks, found.rule) == ((3,), "silent_node")


def test_a_side_thread_that_waits_does_not_hide_a_main_thread_that_is_stuck() -> None:
    scene = stuck_rank(1)
    sight = scene.ranks[1]
    saving = msgspec.structs.replace(
        sight.trace.ops[-1], group="7", op="gather", seq=1, state="waiting", thread=1, waiting_at_s=scene.at_s - 6
    )
    group = msgspec.structs.replace(sight.trace.groups[0], name="7", desc="saver")
    trace = msgspec.structs.replace(sight.trace, ops=(*sight.trace.ops, saving), groups=(*sight.trace.groups, group))
    ranks = list(scene.ranks)
    ranks[1] = msgspec.structs.replace(sight, trace=trace)
    found = look(msgspec.structs.replace(scene, ranks=tuple(ranks)), PATIENCE).verdict
    assert found is not None and (found.kind, found.ranks) == ("hang", (1,))


def test_a_rank_that_is_not_seen_at_all_gets_some_more_time() -> None:
    def unseen(waited_s: float) -> Scene:
        scene = stuck_rank(1, waited_s)
        ranks = list(scene.ranks)
        ranks[1] = msgspec.structs.replace(ranks[1], processes=())
        return msgspec.structs.replace(scene, ranks=tuple(ranks))

    assert look(unseen(6.0), PATIENCE).verdict is None
    found = look(unseen(11.0), PATIENCE).verdict
    assert found is not None and (found.ranks, found.confidence) == ((1,), "medium")


def test_children_that_work_make_the_rank_work() -> None:
    scene = stuck_rank(0, 20.0)
    child = ProcessSight(pid=9, parent=100, is_rank=False, command="writer", state="R", cpu=0.9)
    ranks = list(scene.ranks)
    ranks[0] = msgspec.structs.replace(ranks[0], processes=(*ranks[0].processes, child))
    assert look(msgspec.structs.replace(scene, ranks=tuple(ranks)), PATIENCE).verdict is None


def test_a_rank_that_burns_cpu_is_named_as_one_that_may_yet_come() -> None:
    spins = {"state": "R", "cpu": 0.98}
    found = look(seen_as(stuck_rank(waited_s=11.0), 0, **spins), PATIENCE).verdict
    assert found is not None
    assert (found.rule, found.proven, found.confidence) == ("busy", False, "medium")
    assert "it uses 98 % of a core in" in found.sentence


def test_patience_begins_anew_when_a_rank_stops_working() -> None:
    works = look(seen_as(stuck_rank(waited_s=15.0), 0, **WORKING["is in torch.save"]), PATIENCE)
    ((rank, at_s),) = works.worked
    assert (works.verdict, rank) == (None, 0)
    idle = stuck_rank(waited_s=18.0)
    assert idle.at_s - at_s < 5.0
    again = look(idle, PATIENCE, worked=dict(works.worked))
    assert again.verdict is None
    assert again.worked == works.worked, "it is remembered until the next look"
    later = look(stuck_rank(waited_s=21.0), PATIENCE, worked=dict(again.worked))
    assert later.verdict is not None and later.verdict.ranks == (0,)
