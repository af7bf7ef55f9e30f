"""What of a trace travels: little enough for ten thousand ranks, and still enough to find the culprit."""

from __future__ import annotations

import msgspec
import pytest
from tracer.nccl.simulate import Model, sights_of
from tracer.nccl.stalls import HELD_OUT, TUNING, Stall, grid, one_group, run
from tracer.verdict.inside_scenes import FEWEST, on_the_way

from robust_run.launcher.control import frames
from robust_run.launcher.model.job import FEWEST_FLOWS, FEWEST_OPS, MOST_FLOWS, Sights, flows_of, ops_of
from robust_run.tracer.nccl.cut import COMMUNICATORS, LANE, counterparts, cut, restored
from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.types import Communicator, Flow, NcclOp, NcclSight, NcclTrace
from robust_run.tracer.plugin import layout
from robust_run.tracer.types import RankSight

BIG = (1 << 63) - 1


def named(stall: Stall) -> str:
    return stall.name


def crowded() -> NcclTrace:
    """A trace that is as full as a file can be, with numbers that take as much room as numbers can."""
    base = sights_of(run(TUNING[0]))[0].trace
    assert base is not None
    flow, op, comm = base.flows[0], base.ops[0], base.communicators[0]
    wide = dict.fromkeys(("op_seq", "op_base", "op_steps", "steps", "posted", "gpu_ready", "transmitted", "bytes"), BIG)
    times = dict.fromkeys(("op_started_s", "posted_s", "gpu_ready_s", "transmitted_s", "done_s"), 1e9 / 3)
    flows = tuple(
        msgspec.structs.replace(flow, channel=number % 256, peer=number, op=number % layout.OPS, open_ops=1, **wide, **times)
        for number in range(layout.FLOWS)
    )  # fmt: skip
    ops = tuple(
        msgspec.structs.replace(op, number=number, seq=BIG, count=BIG, sent_bytes=BIG, func="A" * 16, dtype="b" * 16)
        for number in range(layout.OPS)
    )
    comms = tuple(
        msgspec.structs.replace(comm, serial=number, hash=BIG - number, name="n" * 64)
        for number in range(1, layout.COMMS + 1)
    )
    return msgspec.structs.replace(base, flows=flows, ops=ops, communicators=comms)


FULL = crowded()
MOVED = msgspec.structs.replace(FULL, flows=tuple(msgspec.structs.replace(flow, posted=1) for flow in FULL.flows))


@pytest.mark.parametrize("world_size", [1, 8, 512, 4096, 10_000])
def test_the_fullest_rank_stays_within_bounds(world_size: int) -> None:
    flows, ops = flows_of(world_size), ops_of(world_size)
    now, before = cut(FULL, MOVED, flows=flows, ops=ops)
    assert before is not None
    assert (len(now.flows), len(now.ops), len(now.communicators)) == (flows, ops, COMMUNICATORS)
    assert now.left_out == layout.FLOWS - flows
    sight = RankSight(rank=0, node="", nccl=now, nccl_before=before)
    frame = frames.encode(Sights(attempt=0, number=0, sights=(sight,) * 16))
    assert len(frame) < frames.LARGEST_FRAME_BYTES / 4, "sixteen such ranks are one frame"
    assert len(frame) / 16 < 30_000 + 260 * (2 * flows + ops)


def test_all_ranks_together_stay_within_what_a_controller_can_hold() -> None:
    for world_size in (1, 100, 512, 5000, 10_000):
        assert flows_of(world_size) * world_size <= max(MOST_FLOWS, FEWEST_FLOWS * world_size)
        assert ops_of(world_size) >= FEWEST_OPS
    assert (FEWEST_FLOWS, ops_of(10_000)) == FEWEST


@pytest.mark.parametrize("room", [FEWEST, (2 * LANE, 8)], ids=["least", "less than that"])
@pytest.mark.parametrize("stall", [*TUNING, *HELD_OUT], ids=named)
def test_a_stall_is_known_from_cut_traces(stall: Stall, room: tuple[int, int]) -> None:
    sights = on_the_way(sights_of(run(stall), before=run(stall)), *room)
    found = diagnose(
        [
            NcclSight(
                rank=sight.rank,
                node=sight.node,
                trace=sight.nccl,
                before=None if sight.nccl is None else restored(sight.nccl, sight.nccl_before),
                alive=sight.exit_code is None,
            )
            for sight in sights
        ]
    )
    sure = [fault for fault in found.faults if fault.kind != "unseen"]
    assert stall.is_right(sure), found.faults
    assert all(fault.confidence == "low" for fault in found.faults if fault not in sure), (
        "what was left out is not known"
    )


def test_nothing_is_cut_that_has_room() -> None:
    for sight in sights_of(run(TUNING[0])):
        assert sight.trace is not None
        now, _ = cut(sight.trace, None, flows=1024, ops=256)
        assert (now.flows, now.ops, now.left_out) == (sight.trace.flows, sight.trace.ops, 0)


def test_in_a_stall_the_earlier_reading_takes_no_room() -> None:
    for sight in sights_of(run(TUNING[0])):
        assert sight.trace is not None
        now, before = cut(sight.trace, sight.trace, flows=1024, ops=256)
        assert before is not None and before.flows == ()
        again = restored(now, before)
        assert again is not None and again.flows == sight.trace.flows


def test_what_moved_is_told_as_it_was() -> None:
    model = Model(grid(3, 2, "ring", 30, 1), None, 3)
    model.run(11)
    early = sights_of(model)
    model.run(40)
    for then, sight in zip(early, sights_of(model), strict=True):
        assert then.trace is not None and sight.trace is not None
        now, before = cut(sight.trace, then.trace, flows=1024, ops=256)
        again = restored(now, before)
        assert again is not None
        known = {(flow.comm, flow.channel, flow.peer, flow.direction): flow for flow in then.trace.flows}
        for flow in again.flows:
            old = known.get((flow.comm, flow.channel, flow.peer, flow.direction))
            assert flow == old or (old is None and flow.steps == flow.open_ops == 0), "or it did not exist"


def test_flows_that_stand_still_go_first_and_idle_ends_of_busy_ones_before_other_idle_ones() -> None:
    (base, peer) = (sight.trace for sight in sights_of(run(TUNING[0]))[:2])
    assert base is not None and peer is not None
    stuck = next(flow for flow in base.flows if flow.open_ops)

    def made(channel: int, **more: object) -> Flow:
        return msgspec.structs.replace(stuck, channel=channel, **more)

    done = stuck.op_base + stuck.op_steps
    played = [made(channel, done=done) for channel in range(4)]
    idle = [made(channel, open_ops=0, op_started_s=float(channel)) for channel in range(5, 200)]
    trace = msgspec.structs.replace(base, flows=(*idle, *played, made(4)))
    other = msgspec.structs.replace(
        peer,
        flows=(msgspec.structs.replace(made(9), rank=stuck.peer, peer=stuck.rank, direction=
               "recv" if stuck.direction == "send" else "send"),),
    )  # fmt: skip
    now, _ = cut(trace, None, flows=7, ops=8, wanted=counterparts([other]))
    assert {flow.channel for flow in now.flows} >= {4, 9}
    assert now.communicators[0].channels == 200, "how many there are is told"


def test_the_call_that_flows_are_in_and_the_newest_of_each_function_are_told() -> None:
    base = sights_of(run(Stall("", one_group(3, "ring", 6, 1), TUNING[0].broken, 1)))[0].trace
    assert base is not None
    op = base.ops[0]
    ops: list[NcclOp] = [msgspec.structs.replace(op, number=number) for number in range(100)]
    ops[7] = msgspec.structs.replace(ops[7], func="Broadcast")
    flow = msgspec.structs.replace(base.flows[0], op=3, open_ops=1)
    now, _ = cut(msgspec.structs.replace(base, ops=tuple(ops), flows=(flow,)), None, flows=48, ops=4)
    assert [one.number for one in now.ops] == [3, 7, 98, 99]


def test_communicators_in_flight_and_in_use_are_told_first() -> None:
    comms: list[Communicator] = [
        msgspec.structs.replace(one, closed_s=1.0 if one.serial < 250 else None) for one in FULL.communicators
    ]
    flow = msgspec.structs.replace(FULL.flows[0], comm=17)
    now, _ = cut(msgspec.structs.replace(FULL, communicators=tuple(comms), flows=(flow,)), None, flows=48, ops=4)
    kept = {one.serial for one in now.communicators}
    assert len(kept) == COMMUNICATORS
    assert kept >= {17, *range(250, layout.COMMS + 1)}
