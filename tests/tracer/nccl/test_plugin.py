"""What NCCL does can be read from outside, through every version of its interface."""

from __future__ import annotations

import os
import signal

import pytest
from tracer.nccl.playing import (
    ALL_GATHER,
    COLL,
    COMM,
    MAKE_COMM,
    OP,
    RECV,
    SEND,
    STEP,
    Rank,
    StartRank,
    proxy_op,
    rungs,
    step_up_to,
    steps,
)

from robust_run.tracer.plugin import layout
from robust_run.tracer.sight.inside import TracesOfRanks
from robust_run.tracer.sight.targets import Target

COLL_TYPES = 2 | 4 | 8 | 16


def test_layout_is_that_of_the_c_structures(start_rank: StartRank) -> None:
    assert [int(word) for word in start_rank().ask("layout").split()] == [
        layout.VERSION,
        layout.FILE_BYTES,
        layout.COMMS,
        layout.FLOWS,
        layout.OPS,
        layout.COMM_BYTES,
        layout.FLOW_BYTES,
        layout.OP_BYTES,
        layout.COMMS_AT,
        layout.FLOWS_AT,
        layout.OPS_AT,
        layout.EVENT_CELL,
        layout.RAN_CELL,
        layout.THREADS_AT // 8,
        layout.NAME,
        layout.LEVELS.start,
        layout.FLOW_WEIGHED,
        layout.KERNEL_LAST,
    ]
    assert layout.FILE_BYTES <= 16 << 20


def test_an_operation_that_goes_well(rank: Rank, version: int) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), f"stop {COLL}", steps(0, 8), f"stop {OP}")
    trace = rank.trace()
    assert (trace.glance.pid, trace.glance.api) == (rank.process.pid, version)
    (communicator,) = trace.communicators
    assert (communicator.name, communicator.hash, communicator.rank) == ("tp_3", 0xABCDEF, 5)
    assert (communicator.ranks, communicator.nodes) == ((None, None) if version == 3 else (8, 2))
    assert communicator.closed_s is None
    (op,) = trace.ops
    assert (op.kind, op.func, op.seq, op.count, op.dtype) == ("collective", "AllGather", 1204, 4096, "bfloat16")
    assert (op.comm, op.opened, op.closed, op.sent_bytes) == (communicator.serial, 1, 1, 8 * 1024)
    assert op.stopped_s is not None
    assert op.proxy_first_s is not None
    assert op.proxy_last_s is not None
    assert communicator.opened_s <= op.started_s <= op.proxy_first_s <= op.proxy_last_s
    (flow,) = trace.flows
    assert (flow.comm, flow.rank, flow.channel, flow.peer, flow.direction) == (communicator.serial, 5, 3, 6, "send")
    assert (flow.op, flow.op_seq, flow.op_steps, flow.steps, flow.open_ops) == (op.number, 1204, 8, 8, 0)
    assert rungs(flow) == (8, 8, 8, 8)
    assert (trace.glance.dropped, trace.glance.unknown, trace.glance.stale, trace.glance.foreign) == (0, 0, 0, 0)


@pytest.mark.parametrize(("told", "algorithm"), [("RING", "ring"), ("TREE", "tree"), ("NVLS_TREE", "other"), ("0", "")])
def test_how_a_collective_is_carried_out_is_told(rank: Rank, told: str, algorithm: str) -> None:
    rank.play(MAKE_COMM, f"{ALL_GATHER} {told}", proxy_op(), steps(0, 8), f"stop {OP}")
    (op,) = rank.trace().ops
    assert (op.kind, op.func, op.algorithm, op.closed) == ("collective", "AllGather", algorithm, 1)


def test_a_thread_that_is_kept_from_running_is_seen_from_outside(rank: Rank) -> None:
    """The kernel counts for how long the thread that the plugin names has run."""
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 3))
    assert rank.trace().communicators[0].thread == rank.process.pid, "the driver has one thread"
    target = Target(rank=0, node="gpu-0", pid=rank.process.pid, steps_file=rank.path.removesuffix(layout.SUFFIX))
    rank.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, rank.process.pid, os.WSTOPPED | os.WNOWAIT)
    looks = TracesOfRanks([target])
    looks.sample()
    looks.sample()
    assert seen(looks) == "still"
    rank.process.send_signal(signal.SIGCONT)
    rank.play(steps(3, 8))
    looks.sample()
    assert seen(looks) == "runs"


def seen(looks: TracesOfRanks) -> str:
    """What the thread of the only communicator did between the first look and the last."""
    ((now, _),) = looks.found(256, 64)
    assert now is not None
    return now.communicators[0].proxy


def test_a_point_to_point_call(rank: Rank) -> None:
    rank.play(
        MAKE_COMM, f"p2p {COMM} {COLL} Send 100 ncclFloat32 7", f"stop {COLL}", f"p2p {COMM} {COLL} Recv 5 ncclInt8 2"
    )
    first, second = rank.trace().ops
    assert (first.kind, first.func, first.count, first.dtype, first.peer, first.seq) == (
        "p2p",
        "Send",
        100,
        "float32",
        7,
        0,
    )
    assert (second.func, second.peer, second.seq, second.stopped_s) == ("Recv", 2, 1, None)


#: Of each stall: the states that the last step reaches, and the counters that this leaves, for a sender and for a receiver.
STALLS = {
    "the GPU never fills the buffer": (True, [SEND["gpu_wait"]], (3, 2, 2, 2)),
    "the receiver has posted nothing": (True, [SEND["gpu_wait"], SEND["peer_wait"]], (3, 3, 2, 2)),
    "the network does not deliver": (True, list(SEND.values()), (3, 3, 3, 2)),
    "nothing arrives": (False, [RECV["recv_wait"]], (3, 2, 2, 2)),
    "what arrived is not flushed": (False, [RECV["recv_wait"], RECV["flush_wait"]], (3, 3, 2, 2)),
    "the GPU never consumes it": (False, list(RECV.values()), (3, 3, 3, 2)),
    "the network takes no buffer": (False, [], (2, 2, 2, 2)),
}


@pytest.mark.parametrize("stall", STALLS)
def test_each_stall_leaves_its_own_counters(rank: Rank, version: int, stall: str) -> None:
    sends, states, expected = STALLS[stall]
    if version == 3 and states == [8, 20]:
        states, expected = [8], (3, 2, 2, 2)  # the oldest version has no word for it
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(sends=sends), steps(0, 2, sends=sends), step_up_to(2, states))
    flow = rank.flow()
    assert rungs(flow) == expected
    assert (flow.open_ops, flow.direction) == (1, "send" if sends else "recv")


def test_an_operation_that_never_starts(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op())
    flow = rank.flow()
    assert (rungs(flow), flow.steps, flow.open_ops, flow.posted_s) == ((0, 0, 0, 0), 8, 1, None)


def test_states_that_are_repeated_while_nccl_polls_count_once(rank: Rank) -> None:
    polled = [f"step {COMM} {STEP} {OP} 0", f"state {STEP} 8 0", *[f"state {STEP} 20 0"] * 100]
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), *polled)
    assert rungs(rank.flow()) == (1, 1, 0, 0)


def test_a_step_that_is_started_again_and_again_is_one(rank: Rank) -> None:
    again = [f"step {COMM} {STEP} {OP} 0"] * 100
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(sends=False), *again, f"state {STEP} 10 0")
    assert rungs(rank.flow()) == (1, 0, 0, 0)
    assert rank.trace().glance.dropped == 0


def test_left_out_states_are_made_up_for(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), f"step {COMM} {STEP} {OP} 0", f"state {STEP} 9 512")
    assert rungs(rank.flow()) == (1, 1, 1, 0)
    rank.play(f"step {COMM} {STEP} {OP} 1", f"stop {STEP}")
    assert rungs(rank.flow()) == (2, 2, 2, 1)


def test_several_steps_in_the_air_end_out_of_order(rank: Rank) -> None:
    started = [line for number in range(8) for line in step_up_to(number, SEND.values(), handle=10 + number)]
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), *started)
    assert rungs(rank.flow()) == (8, 8, 8, 0)
    rank.play(*[f"stop {10 + number}" for number in (3, 7, 0, 1)])
    assert rungs(rank.flow()) == (8, 8, 8, 4)
    rank.play(*[f"stop {10 + number}" for number in (3, 2, 4, 5, 6)])
    assert rungs(rank.flow()) == (8, 8, 8, 8)


def test_an_operation_that_ends_early_leaves_nothing_in_flight(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 2), step_up_to(2, [8]), f"stop {OP}")
    flow = rank.flow()
    assert (rungs(flow), flow.open_ops) == ((3, 3, 3, 3), 0)


def test_operations_that_wait_for_their_turn_in_one_flow(rank: Rank) -> None:
    second = f"coll {COMM} 20 1205 AllGather 8 ncclInt8 0"
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), second, proxy_op(21, parent=20), steps(0, 5))
    flow = rank.flow()
    assert (flow.op_seq, flow.steps, flow.done, flow.open_ops) == (1204, 16, 5, 2)
    rank.play(steps(5, 8), f"stop {OP}", steps(0, 1, handle=21))
    flow = rank.flow()
    assert (flow.op_seq, flow.op_base, flow.done, flow.open_ops) == (1205, 8, 9, 1)


def test_communicators_and_channels_are_told_apart(rank: Rank) -> None:
    commands = []
    for comm in range(4):
        commands += [
            f"comm {comm} group{comm} {comm + 1} 1 4 {comm}",
            f"coll {comm} {comm} 7 AllReduce 1 ncclFloat32 0",
        ]
        for channel in range(3):
            handle = 100 + comm * 10 + channel
            commands += [
                f"op {comm} {handle} {comm} 0 {channel} 1 4 1",
                f"op {comm} {handle + 5} {comm} 0 {channel} 1 4 0",
            ]
            commands += [f"steps {comm} {handle} 0 {comm} 1", f"steps {comm} {handle + 5} 0 {channel} 0"]
    rank.play(*commands)
    trace = rank.trace()
    names = {communicator.serial: communicator.name for communicator in trace.communicators}
    done = {(names[flow.comm], flow.channel, flow.direction): flow.done for flow in trace.flows}
    expected = {(f"group{comm}", channel, "send"): comm for comm in range(4) for channel in range(3)}
    expected |= {(f"group{comm}", channel, "recv"): channel for comm in range(4) for channel in range(3)}
    assert done == expected


def test_a_communicator_that_ends_and_one_that_follows(rank: Rank) -> None:
    rank.play(MAKE_COMM, f"finalize {COMM}", f"finalize {COMM}", ALL_GATHER, MAKE_COMM, ALL_GATHER)
    first, second = rank.trace().communicators
    assert first.closed_s is not None
    assert second.closed_s is None
    assert [op.comm for op in rank.trace().ops] == [second.serial]


def test_communicators_made_and_ended_for_ever(rank: Rank) -> None:
    for _ in range(10):
        rank.play(*[MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 1), f"stop {OP}", f"finalize {COMM}"] * 100)
    trace = rank.trace()
    assert trace.glance.communicators == 1000
    assert trace.glance.dropped == 0
    assert trace.communicators[-1].serial == 1000


def test_threads_lose_nothing(rank: Rank) -> None:
    rank.play(MAKE_COMM, "play 8 200 0")
    assert {rungs(flow) for flow in rank.trace().flows} == {(3200, 3200, 3200, 3200)}
    assert len(rank.trace().flows) == 8
    assert rank.trace().glance.ops == 1600


def test_threads_may_share_a_flow(rank: Rank) -> None:
    rank.play(MAKE_COMM, "play 8 200 1")
    flow = rank.flow()
    assert (rungs(flow), flow.open_ops, flow.bytes) == ((25600, 25600, 25600, 25600), 0, 25600 * 1024)


def test_kernels_are_told_of_only_if_asked_for(start_rank: StartRank, version: int) -> None:
    quiet, asked = start_rank(version), start_rank(version, environment={layout.KERNELS_VARIABLE: "1"})
    quiet.play(MAKE_COMM)
    asked.play(MAKE_COMM, ALL_GATHER, f"event {COMM} {STEP} {COLL} 64", f"stop {STEP}")
    assert int(quiet.ask("mask")) == COLL_TYPES
    assert int(asked.ask("mask")) == COLL_TYPES | 64
    (op,) = asked.trace().ops
    assert op.kernel_first_s is not None
    assert op.kernel_last_s is not None
    assert op.kernel_first_s <= op.kernel_last_s


def test_what_is_done_for_a_process_beside_is_kept_apart(rank: Rank) -> None:
    rank.play(MAKE_COMM, f"raw {COLL} 0x7fff12345678", f"op 1000 {OP} {COLL} 4242 1 3 4 1", steps(0, 2))
    flow = rank.flow()
    assert (flow.foreign, flow.comm, flow.peer, flow.op, flow.done) == (True, 4242, 3, None, 2)
    assert rank.trace().glance.foreign == 1
