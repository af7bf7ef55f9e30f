"""Over sockets, which take and deliver what no receiver has asked for, who keeps the others waiting is said right, too.

The model is `sockets`; the rules were mended with seeds 0 to 5, and those tried here were kept apart until they were done.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tracer.nccl.simulate import Broken, Model, sights_of, trace_of
from tracer.nccl.stalls import Stall, one_group, over_sockets, run

from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.types import NcclFault

HELD_OUT = over_sockets(7001)


def named(stall: Stall) -> str:
    return stall.name


@pytest.mark.parametrize("stall", HELD_OUT, ids=named)
def test_a_stall_over_sockets(stall: Stall) -> None:
    model = run(stall)
    for api in (3, 6):
        found = diagnose(sights_of(model, api, before=model))
        assert stall.is_right(found.faults, api), found.faults


def test_sockets_deliver_the_first_of_a_ring_of_two_though_the_peer_has_not_come() -> None:
    """As it was seen on a GPU (see tests/tracer/verdict/seen_on_gpu): of four chunks two were done."""
    world = replace(one_group(2, "ring", 4, 1), network="sockets", kept=4, slices=2, kernel_tells=True)
    model = Model(world, Broken("late", 1, call=1), 1)
    assert not model.run()
    trace = trace_of(model, 0)
    (sent,) = [flow for flow in trace.flows if flow.direction == "send"]
    assert [count - sent.op_base for count in (sent.posted, sent.gpu_ready, sent.done)] == [4, 2, 2]
    (fault,) = diagnose(sights_of(model, before=model)).faults
    assert (fault.kind, fault.ranks) == ("late", (1,))


CUT = one_group(4, "ring", 12, 1, "AllGather")


def cut(kernel_tells: bool) -> NcclFault:
    """What is said of a ring over sockets that is cut between ranks 1 and 2."""
    world = replace(CUT, network="sockets", kept=4, kernel_tells=kernel_tells)
    model = Model(world, Broken("network", 1, call=2, after=3, peer=2), 3)
    assert not model.run()
    (fault,) = diagnose(sights_of(model, before=model)).faults
    return fault


def test_what_sockets_call_delivered_is_not_put_down_to_the_receivers_thread() -> None:
    fault = cut(kernel_tells=True)
    assert (fault.kind, {*fault.ranks, *fault.suspects}) == ("network", {1, 2})


def test_where_it_is_not_known_what_the_network_is_nothing_is_certain() -> None:
    fault = cut(kernel_tells=False)
    assert (fault.kind, fault.ranks, fault.confidence) == ("proxy", (2,), "medium")
    assert "its proxy thread stands still, or the network" in fault.sentence


def test_a_thread_that_gets_no_cpu_is_named_and_not_the_gpu_that_it_no_longer_looks_at() -> None:
    model = Model(replace(CUT, kernel_tells=True), Broken("thread", 1, call=2, after=3), 3)
    assert not model.run()
    (fault,) = diagnose(sights_of(model, before=model)).faults
    assert (fault.kind, fault.ranks, fault.confidence) == ("proxy", (1,), "high")
