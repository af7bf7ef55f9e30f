"""Stalls inside NCCL come to the right verdict, from what reaches the controller; what is no stall comes to none."""

from __future__ import annotations

import copy

import msgspec
import pytest
from tracer.nccl.simulate import Broken, Call, Group, Model, World, sights_of
from tracer.nccl.stalls import HELD_OUT, TUNING, Stall, grid, one_group, pipeline
from tracer.verdict.inside_scenes import (
    EVENT_S,
    FEWEST,
    asleep,
    changed,
    scene_of,
    scene_of_stall,
    with_rings,
)

from robust_run.health.types import Finding
from robust_run.tracer.nccl.types import NcclNote
from robust_run.tracer.stacks.activity import LOOK_S
from robust_run.tracer.types import Op, Scene, SceneLook, TraceVerdict
from robust_run.tracer.verdict import (
    RankPatience,
    communicator_names,
    describe_inside,
    describe_waits,
    look,
    post_mortem,
    waits,
)

#: What a verdict on each kind of fault is called; a stopped process whose state nobody sees looks like others.
KINDS = {"late": {"hang"}, "dead": {"desync"}, "stopped": {"hang", "comm_stall"}}
#: Longer than it takes for what is only likely.
LONG_S = 11.0


def named(stall: Stall) -> str:
    return stall.name


def verdict_on(scene: Scene) -> TraceVerdict:
    found = look(scene, RankPatience()).verdict
    assert found is not None
    assert len(found.sentence) <= 250 and "\n" not in found.sentence
    assert len(found.evidence) <= 40
    return found


def check(stall: Stall, verdict: TraceVerdict) -> None:
    assert verdict.kind in KINDS.get(stall.broken.kind, {"comm_stall"}), verdict.sentence
    if stall.broken.kind == "node":
        assert stall.world.node(stall.broken.rank) in verdict.nodes
    else:
        assert stall.broken.rank in verdict.ranks, verdict.sentence
        assert set(verdict.ranks) <= {stall.broken.rank, stall.broken.peer} | ({*verdict.over_evicted} if
               stall.broken.kind == "stopped" else set())  # fmt: skip


@pytest.mark.parametrize("api", [3, 6], ids=["v3", "v6"])
@pytest.mark.parametrize("stall", [*TUNING, *HELD_OUT], ids=named)
def test_a_stall_over_the_wire(stall: Stall, api: int) -> None:
    check(stall, verdict_on(scene_of_stall(stall, api=api, waited_s=LONG_S)))


@pytest.mark.parametrize("room", [FEWEST, (12, 8)], ids=["least", "less than that"])
@pytest.mark.parametrize("stall", HELD_OUT, ids=named)
def test_a_stall_of_which_little_is_told(stall: Stall, room: tuple[int, int]) -> None:
    check(stall, verdict_on(scene_of_stall(stall, flows=room[0], ops=room[1], waited_s=LONG_S)))


def stalled(world: World, broken: Broken) -> Model:
    model = Model(world, broken, 5)
    assert not model.run()
    return model


EIGHT = World(8, 4, (Group("tp_3", tuple(range(8)), 1),), tuple(Call(0, "ring", 30, "AllGather") for _ in range(5)))
#: The same among all but rank 0.
WITHOUT_0 = World(8, 4, (Group("tp_3", tuple(range(1, 8)), 1),), EIGHT.program)
GPU, LATE = Broken("gpu", 5, call=4, after=9), Broken("late", 2, call=4)


def seen(broken: Broken, world: World = EIGHT, waited_s: float = 6.0) -> Scene:
    model = stalled(world, broken)
    return scene_of(model, model, waited_s=waited_s)


def test_a_gpu_that_does_not_go_on() -> None:
    verdict = verdict_on(seen(GPU))
    assert verdict.sentence == (
        "all 8 ranks are in all_gather #1204 of tp_3; rank 5 posted 8 chunks that its GPU never made ready"
    )
    assert (verdict.kind, verdict.ranks, verdict.nodes) == ("comm_stall", (5,), ("node1",))
    assert (verdict.confidence, verdict.rule, verdict.group) == ("high", "nccl_gpu_rank", "group tp_3")
    assert (verdict.onset_s, verdict.over_evicted, verdict.at_work) == (EVENT_S, (), False)
    assert "posted 137, gpu_ready 129" in verdict.evidence[0]


def test_one_who_did_not_make_the_call_is_named_with_what_it_does_instead() -> None:
    verdict = verdict_on(seen(LATE))
    assert verdict.sentence == (
        "rank 2 (node node0) never joined all_gather #1204 of group tp_3 (7 ranks have been waiting for 6.0 s); "
        "it is in data.py:88 get"
    )
    assert (verdict.kind, verdict.ranks, verdict.rule) == ("hang", (2,), "never_joined")
    assert "NCCL: 7 of 8 ranks are in all_gather #1204 of tp_3; rank 2 has not called it" in verdict.evidence[0]


def working(scene: Scene, rank: int) -> Scene:
    return changed(scene, rank, processes=(asleep(100 + rank, cpu=1.0, state="R", io_bytes=int(50e6 * LOOK_S)),))


@pytest.mark.parametrize("broken", [LATE, GPU], ids=["late", "gpu"])
def test_one_who_is_at_work_is_given_more_time(broken: Broken) -> None:
    """A checkpoint may be written, and a GPU may compute what its host gives it."""
    found = look(working(seen(broken), broken.rank), RankPatience())
    assert found.verdict is None
    assert found.again_s is not None
    assert f"rank {broken.rank}" in found.reason
    assert [rank for rank, _ in found.worked] == [broken.rank]
    much_later = verdict_on(working(seen(broken, waited_s=700.0), broken.rank))
    assert much_later.ranks == (broken.rank,)


def test_patience_begins_anew_when_work_ends() -> None:
    later = seen(GPU, waited_s=20.0)
    assert look(later, RankPatience(), worked={5: EVENT_S + 18.0}).verdict is None
    assert look(later, RankPatience(), worked={5: EVENT_S + 10.0}).verdict is not None


def test_a_link_is_between_two_ranks_and_needs_more_time() -> None:
    broken = Broken("network", 6, call=4, after=9, peer=7)
    assert look(seen(broken), RankPatience()).verdict is None
    verdict = verdict_on(seen(broken, waited_s=LONG_S))
    assert (verdict.kind, verdict.ranks, verdict.over_evicted) == ("comm_stall", (6, 7), (6, 7))
    assert "does not deliver what rank 6 sends to rank 7" in verdict.sentence


def test_a_network_of_a_node_is_that_node_s() -> None:
    verdict = verdict_on(seen(Broken("node", 4, call=4), grid(4, 2, "ring", 12, 1), LONG_S))
    assert (verdict.kind, verdict.nodes, verdict.over_evicted) == ("comm_stall", ("node2",), ())


def test_a_stopped_process_is_seen_as_that() -> None:
    scene = seen(Broken("stopped", 3, call=2, after=4))
    verdict = verdict_on(changed(scene, 3, processes=(asleep(103, state="T"),)))
    assert (verdict.kind, verdict.ranks, verdict.rule) == ("stopped", (3,), "state")
    assert any(line.startswith("NCCL: ") for line in verdict.evidence)


def test_one_that_ended_in_the_middle_left_too_early() -> None:
    verdict = verdict_on(seen(Broken("dead", 2, call=2, after=5)))
    assert (verdict.kind, verdict.ranks) == ("desync", (2,))


def test_one_that_ended_before_the_call_left_too_early() -> None:
    scene = changed(seen(LATE), 2, exit_code=0, ended_at_s=EVENT_S, processes=())
    assert (verdict_on(scene).kind, verdict_on(scene).rule) == ("desync", "early_exit")


# ---- nothing is wrong ----


def lifted(scene: Scene) -> SceneLook:
    found = look(scene, RankPatience())
    assert (found.verdict, found.again_s) == (None, None)
    return found


WORLDS = [one_group(5, "ring", 40, 2), one_group(7, "tree", 40, 2), pipeline(4, 40, 1), grid(3, 2, "ring", 30, 1)]


@pytest.mark.parametrize("world", WORLDS, ids=["ring", "tree", "pipeline", "grid"])
@pytest.mark.parametrize("moment", [3, 25])
def test_what_goes_on_is_no_stall_however_slow_it_is(world: World, moment: int) -> None:
    model = Model(world, None, moment)
    model.run(moment)
    before = copy.deepcopy(model)
    model.run(1)
    lifted(scene_of(model, before, waited_s=0.3))


@pytest.mark.parametrize("world", WORLDS, ids=["ring", "tree", "pipeline", "grid"])
def test_where_nothing_is_in_flight_nobody_waits(world: World) -> None:
    """All compute, or all write a checkpoint."""
    model = Model(world, None, 1)
    assert not model.run()
    lifted(scene_of(model, model, waited_s=300.0))


def test_a_job_in_which_only_nccl_waits_is_not_told_that_nobody_does() -> None:
    scene = seen(GPU, waited_s=2.0)
    assert look(scene, RankPatience()).reason == "no rank waits for long any more"
    assert look(seen(GPU), RankPatience()).verdict is not None
    with_idle_rings = msgspec.structs.replace(seen(GPU), ranks=with_rings(seen(GPU).ranks, {"tp_3": tuple(range(8))}))
    assert verdict_on(with_idle_rings).ranks == (5,)


def test_what_moves_during_the_look_is_not_blamed() -> None:
    model = stalled(EIGHT, GPU)
    early = copy.deepcopy(model)
    for wire in early.wires.values():
        wire.posted = max(0, wire.posted - 1)
    assert look(scene_of(model, early), RankPatience()).verdict is None


# ---- names ----


def test_one_word_is_used_for_one_group() -> None:
    """NCCL may have been told a number, or nothing: the group with the same members gives its name."""
    groups = (Group("", tuple(range(8)), 1),)
    model = stalled(World(8, 4, groups, EIGHT.program), GPU)
    scene = scene_of(model, model)
    assert verdict_on(scene).sentence.startswith("all 8 ranks are in all_gather #1204 of the world;")
    named_scene = msgspec.structs.replace(scene, ranks=with_rings(scene.ranks, {"dp_0": tuple(range(8))}))
    verdict = verdict_on(named_scene)
    assert verdict.sentence.startswith("all 8 ranks are in all_gather #1204 of dp_0;")
    assert verdict.group == "group dp_0"
    assert communicator_names(named_scene) == {0x1000: "dp_0"}


def test_of_two_groups_with_the_same_members_the_name_decides() -> None:
    scene = seen(GPU)
    both = with_rings(scene.ranks, {"dp_0": tuple(range(8)), "tp_3": tuple(range(8))})
    assert communicator_names(msgspec.structs.replace(scene, ranks=both)) == {0x1000: "tp_3"}


def test_members_in_another_order_are_another_group() -> None:
    scene = seen(GPU)
    other = with_rings(scene.ranks, {"dp_0": (1, 0, 2, 3, 4, 5, 6, 7)})
    assert communicator_names(msgspec.structs.replace(scene, ranks=other)) == {0x1000: "tp_3"}


# ---- rings and NCCL together ----


def in_ring(scene: Scene, ranks: range, op: str = "barrier", since_s: float = EVENT_S, **more: object) -> Scene:
    """The same scene in which ranks wait in a call that their rings show."""
    sights = list(with_rings(scene.ranks, {"tp_3": tuple(range(8))}))
    for rank in ranks:
        trace = sights[rank].trace
        assert trace is not None
        waiting = Op(group="1", op=op, seq=9, state="waiting", at_s=since_s, waiting_at_s=since_s, **more)  # type: ignore[arg-type]
        sights[rank] = msgspec.structs.replace(sights[rank], trace=msgspec.structs.replace(trace, ops=(waiting,)))
    return msgspec.structs.replace(scene, ranks=tuple(sights))


def test_waits_that_rings_show_as_well_make_it_no_less_certain() -> None:
    verdict = verdict_on(in_ring(seen(GPU), range(8)))
    assert (verdict.ranks, verdict.confidence) == ((5,), "high")


def test_a_ring_that_names_another_rank_makes_it_less_certain() -> None:
    """Rank 0 did not come to a barrier, and waits nowhere; NCCL says that the GPU of rank 5 stands still."""
    scene = in_ring(seen(Broken("gpu", 5, call=4, after=9), WITHOUT_0), range(1, 8))
    verdict = verdict_on(scene)
    assert (verdict.kind, verdict.ranks, verdict.confidence) == ("comm_stall", (5,), "medium")
    assert verdict.evidence[0].startswith("the ring of calls says otherwise: rank 0")


def test_a_mismatch_that_rings_prove_stays_and_nccl_is_evidence() -> None:
    scene = in_ring(seen(GPU), range(8), op="all_gather", numel=100)
    ranks = list(scene.ranks)
    trace = ranks[3].trace
    assert trace is not None
    odd = msgspec.structs.replace(trace.ops[0], numel=7)
    ranks[3] = msgspec.structs.replace(ranks[3], trace=msgspec.structs.replace(trace, ops=(odd,)))
    verdict = verdict_on(msgspec.structs.replace(scene, ranks=tuple(ranks)))
    assert (verdict.kind, verdict.ranks) == ("mismatch", (3,))
    assert verdict.evidence[0].startswith("NCCL: all 8 ranks are in all_gather")


def test_calls_in_another_order_are_a_desync() -> None:
    groups = (Group("tp_0", (0, 1), 1), Group("dp_0", (0, 1), 1))
    model = Model(World(2, 1, groups, (Call(0, "ring", 6), Call(1, "ring", 6))), None, 1)
    model.at[1].reverse()
    assert not model.run()
    verdict = verdict_on(scene_of(model, model))
    assert (verdict.kind, verdict.ranks) == ("desync", (0, 1))


# ---- what people are shown ----


def test_who_waits_for_whom_is_shown_with_the_counters() -> None:
    scene = seen(Broken("gpu", 0, call=0), pipeline(3, 12, 1))
    assert [(wait.waiter, wait.awaited) for wait in waits(scene)][-1:] == [(2, (1,))]
    eight = seen(GPU)
    (line,) = describe_waits(eight)
    assert line == "ranks 0-7 have been waiting for 6.0 s in all_gather #1204 of group tp_3 though all have come"
    first, second, *_ = describe_inside(eight)
    assert first.endswith("rank 5 posted 8 chunks that its GPU never made ready")
    assert second.startswith("  rank 5 send (member 5 -> 6, channel 0): posted 137")
    assert waits(eight)[0].awaited, "its neighbour in the ring"


def test_how_it_came_about_is_evidence() -> None:
    note = NcclNote(
        at_s=EVENT_S + 1, comm=1, channel=0, peer=6, direction="send", posted=137, gpu_ready=129, transmitted=1, done=0
    )
    verdict = verdict_on(changed(seen(GPU), 5, nccl_log=(note,)))
    assert any(
        "rank 5 5.0 s ago: send, channel 0, member 6: posted 137, gpu_ready 129" in line for line in verdict.evidence
    )


# ---- slow ----


def late_again_and_again(rank: int, late_s: float) -> Scene:
    model = Model(one_group(4, "ring", 6, 1), None, 1)
    assert not model.run()
    scene = scene_of(model, None)
    trace = scene.ranks[rank].nccl
    assert trace is not None
    ops = tuple(msgspec.structs.replace(op, started_s=op.started_s + late_s) for op in trace.ops)
    return changed(scene, rank, nccl=msgspec.structs.replace(trace, ops=ops))


def test_a_straggler_is_slow_and_not_stuck() -> None:
    found = look(late_again_and_again(2, 1.5), RankPatience())
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks, found.verdict.rule) == ("slow", (2,), "last-start")
    assert (found.verdict.nodes, found.verdict.confidence) == (("node2",), "medium")
    assert "4 of the last 4 all_reduce of dp_0" in found.verdict.sentence


def test_a_little_later_is_not_slow() -> None:
    lifted(late_again_and_again(2, 0.9))


def test_clocks_of_nodes_that_differ_are_no_delay() -> None:
    lifted(changed(late_again_and_again(2, 50.0), 2, nccl_shift_s=-50.0))


# ---- after the end ----


def dead(scene: Scene, *, after_s: float, timed_out: str = "Watchdog caught collective operation timeout") -> Scene:
    """All ranks have ended so long after the last event: by NCCL's watchdog, or by us."""
    finding = Finding(kind="accelerator", line=timed_out, message=timed_out)
    for sight in scene.ranks:
        stuck = sight.rank != 2 if timed_out else False
        scene = changed(
            scene,
            sight.rank,
            exit_code=-6 if stuck else -9,
            ended_at_s=EVENT_S + after_s + sight.rank / 100,
            finding=finding if stuck else None,
            processes=(),
            nccl_before=None,
        )
    return msgspec.structs.replace(scene, at_s=EVENT_S + after_s + 3.0)


def test_what_nccl_s_watchdog_ended_is_explained_by_the_traces() -> None:
    verdict = post_mortem(dead(seen(GPU), after_s=600.0))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.confidence) == ("comm_stall", (5,), "medium")


def test_a_crash_in_the_midst_of_communication_is_no_stall() -> None:
    assert post_mortem(dead(seen(GPU), after_s=2.0)) is None


def test_who_did_not_call_until_the_watchdog_s_limit_is_named() -> None:
    scene = dead(seen(LATE), after_s=600.0)
    verdict = post_mortem(changed(scene, 2, ended_at_s=EVENT_S + 601.0))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == ("hang", (2,))


def test_ranks_without_traces_change_nothing() -> None:
    scene = scene_of(Model(EIGHT, None, 1), None)
    bare = msgspec.structs.replace(
        scene, ranks=tuple(msgspec.structs.replace(sight, nccl=None, nccl_before=None) for sight in scene.ranks)
    )
    lifted(bare)
    assert describe_inside(bare) == []
    assert len(sights_of(Model(EIGHT, None, 1))) == len(bare.ranks)
