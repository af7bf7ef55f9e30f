"""Who keeps the others waiting inside NCCL is said right: of stalls that the rules were tuned with, and of others."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracer.nccl.simulate import Broken, Call, Group, Model, World, sights_of, tree_children
from tracer.nccl.stalls import HELD_OUT, TUNING, Stall, grid, one_group, pipeline, run

from robust_run.tracer.nccl.gpus import first_parents, parents_for, second_parents
from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.states import cause_of, state_of
from robust_run.tracer.nccl.teams import Team, teams_of
from robust_run.tracer.nccl.types import NcclFault, NcclSight


def named(stall: Stall) -> str:
    return stall.name


@pytest.mark.parametrize("api", [3, 6], ids=["v3", "v6"])
@pytest.mark.parametrize("stall", TUNING, ids=named)
def test_a_stall(stall: Stall, api: int) -> None:
    found = diagnose(sights_of(run(stall), api, before=run(stall)))
    assert stall.is_right(found.faults, api), found.faults


@pytest.mark.parametrize("api", [3, 6], ids=["v3", "v6"])
@pytest.mark.parametrize("stall", HELD_OUT, ids=named)
def test_a_stall_that_was_held_out(stall: Stall, api: int) -> None:
    found = diagnose(sights_of(run(stall), api))
    assert stall.is_right(found.faults, api), found.faults


def test_enough_stalls_are_tried_and_half_of_them_were_held_out() -> None:
    assert len(TUNING) >= 40
    assert len(HELD_OUT) >= len(TUNING)
    assert not {stall.world for stall in TUNING} & {stall.world for stall in HELD_OUT}


WORLDS = [one_group(5, "ring", 40, 2), one_group(7, "tree", 40, 2), pipeline(4, 40, 1), grid(3, 2, "ring", 30, 1)]


@pytest.mark.parametrize("world", WORLDS, ids=["ring", "tree", "pipeline", "grid"])
@pytest.mark.parametrize("moment", [3, 11, 25, 60])
def test_what_goes_on_is_no_fault(world: World, moment: int) -> None:
    model = Model(world, None, moment)
    model.run(moment)
    before = copy.deepcopy(model)
    model.run(40)
    assert diagnose(sights_of(model, before=before)).faults == ()


@pytest.mark.parametrize("world", WORLDS, ids=["ring", "tree", "pipeline", "grid"])
def test_what_is_over_is_no_fault(world: World) -> None:
    model = Model(world, None, 1)
    assert not model.run()
    found = diagnose(sights_of(model))
    assert (found.faults, found.waits) == ((), ())


def only(model: Model, before: Model | None = None) -> NcclFault:
    (fault,) = diagnose(sights_of(model, before=before)).faults
    return fault


def stalled(world: World, broken: Broken) -> Model:
    model = Model(world, broken, 5)
    assert not model.run()
    return model


EIGHT = World(8, 1, (Group("tp_3", tuple(range(8)), 1),), tuple(Call(0, "ring", 30, "AllGather") for _ in range(5)))


def test_the_sentence_about_a_gpu() -> None:
    fault = only(stalled(EIGHT, Broken("gpu", 5, call=4, after=9)))
    assert fault.sentence == (
        "all 8 ranks are in all_gather #1204 of tp_3; rank 5 posted 8 chunks that its GPU never made ready"
    )
    assert fault.waiting == (0, 1, 2, 3, 4, 6, 7)
    assert (fault.state, fault.func, fault.seq) == ("gpu_not_ready", "AllGather", 1204)
    assert "posted 137, gpu_ready 129" in fault.evidence[0]


def test_the_sentence_about_one_who_is_late() -> None:
    fault = only(stalled(EIGHT, Broken("late", 2, call=4)))
    assert fault.sentence == (
        "7 of 8 ranks are in all_gather #1204 of tp_3; rank 2 has not called it (the last was #1203)"
    )


def test_the_sentence_about_a_link() -> None:
    fault = only(stalled(EIGHT, Broken("network", 6, call=4, after=9, peer=7)))
    assert fault.sentence.endswith("the network does not deliver what rank 6 sends to rank 7; it is rank 7 rather")
    assert (fault.ranks, fault.suspects, fault.rule) == ((7,), (6,), "spatial")


def test_seen_twice_is_more_certain_than_seen_once() -> None:
    model = stalled(EIGHT, Broken("gpu", 5, call=4, after=9))
    assert only(model).confidence == "medium"
    assert only(model, before=model).confidence == "high"


def test_a_network_that_is_down_for_a_node_is_that_of_the_node() -> None:
    world = grid(4, 2, "ring", 12, 1)
    fault = only(stalled(world, Broken("node", 4, call=4)))
    assert (fault.scope, fault.nodes, fault.rule) == ("node", ("node2",), "common-node")


def test_who_waits_for_whom() -> None:
    model = stalled(pipeline(3, 12, 1), Broken("gpu", 0, call=0))
    waits = {(wait.waiter, wait.awaited, wait.what) for wait in diagnose(sights_of(model)).waits}
    assert waits == {(1, 0, "recv of pp_0")} | {(2, 1, "recv of pp_0")}


def test_calls_in_another_order_are_a_circle() -> None:
    groups = (Group("tp_0", (0, 1), 1), Group("dp_0", (0, 1), 1))
    model = Model(World(2, 1, groups, (Call(0, "ring", 6), Call(1, "ring", 6))), None, 1)
    model.at[1].reverse()
    assert not model.run()
    fault = only(model)
    assert (fault.kind, fault.ranks) == ("deadlock", (0, 1))


def test_one_without_a_trace_is_not_known() -> None:
    model = stalled(EIGHT, Broken("late", 2, call=0))
    sights = sights_of(model)
    sights[2] = NcclSight(rank=2, node="node2", trace=None)
    (fault,) = diagnose(sights).faults
    assert (fault.kind, fault.ranks, fault.confidence) == ("unseen", (2,), "low")
    sights[2] = NcclSight(rank=2, node="node2", trace=None, alive=False)
    (fault,) = diagnose(sights).faults
    assert (fault.kind, fault.ranks, fault.confidence) == ("dead", (2,), "high")


def test_within_a_node_nothing_is_seen_so_its_ranks_are_suspected_together() -> None:
    group = Group("dp_0", tuple(range(6)), 1)
    world = World(6, 2, (group,), (Call(0, "ring", 24, "AllGather"),) * 2, network_within_nodes=False)
    fault = only(stalled(world, Broken("gpu", 3, call=1, after=4)))
    assert (fault.kind, set(fault.ranks), fault.confidence) == ("gpu", {2, 3}, "medium")


def test_one_who_is_late_within_a_node_is_known_by_its_calls() -> None:
    group = Group("dp_0", tuple(range(6)), 1)
    world = World(6, 2, (group,), (Call(0, "ring", 24, "AllGather"),) * 2, network_within_nodes=False)
    fault = only(stalled(world, Broken("late", 2, call=1)))
    assert (fault.kind, fault.ranks) == ("late", (2,))


def slowed(rank: int, late_s: float, field: str) -> list[NcclSight]:
    """Traces of four ranks of which one is late in every call."""
    model = Model(one_group(4, "ring", 6, 1), None, 1)
    assert not model.run()
    sights = sights_of(model)
    trace = sights[rank].trace
    assert trace is not None
    ops = tuple(msgspec.structs.replace(op, **{field: getattr(op, field) + late_s}) for op in trace.ops)
    sights[rank] = msgspec.structs.replace(sights[rank], trace=msgspec.structs.replace(trace, ops=ops))
    return sights


@pytest.mark.parametrize(("field", "rule"), [("started_s", "last-start"), ("proxy_last_s", "last-end")])
def test_a_straggler(field: str, rule: str) -> None:
    (fault,) = diagnose(slowed(2, 1.5, field)).faults
    assert (fault.kind, fault.ranks, fault.rule) == ("straggler", (2,), rule)
    assert "4 of the last 4 all_reduce of dp_0 later than all 3 peers, by 1.5 s" in fault.sentence


def test_a_little_later_is_no_straggler() -> None:
    assert diagnose(slowed(2, 0.9, "started_s")).faults == ()


def test_clocks_of_nodes_that_differ_make_no_straggler() -> None:
    sights = slowed(2, 50.0, "started_s")
    sights[2] = msgspec.structs.replace(sights[2], shift_s=-50.0)
    assert not [fault for fault in diagnose(sights).faults if fault.rule == "last-start"]


SMALL = [of for of in TUNING if of.world.ranks <= 5]
NUMBER = st.one_of(st.none(), st.integers(-2, 40), st.integers(0, 1 << 63))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SMALL), st.data())
def test_whatever_traces_say_something_is_said_of_them(stall: Stall, data: st.DataObject) -> None:
    sights = sights_of(run(stall))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(sights) - 1))
        trace = sights[place].trace
        part = data.draw(st.sampled_from(("flows", "ops", "communicators")))
        rows = list(getattr(trace, part))
        if not rows or trace is None:
            continue
        index = data.draw(st.integers(0, len(rows) - 1))
        field = data.draw(st.sampled_from(rows[index].__struct_fields__))
        value = data.draw(NUMBER)
        if (
            value is None
            and getattr(rows[index], field) is not None
            and (field in ("started_s", "opened_s") or not (field.endswith("_s") or field == "op"))
        ):
            value = 0
        if isinstance(getattr(rows[index], field), str):
            value = data.draw(st.sampled_from(("send", "recv"))) if field == "direction" else "p2p"
        rows[index] = msgspec.structs.replace(rows[index], **{field: value})
        sights[place] = msgspec.structs.replace(
            sights[place], trace=msgspec.structs.replace(trace, **{part: tuple(rows)})
        )
    for fault in diagnose(sights).faults:
        assert fault.sentence
        assert set(fault.ranks) <= {sight.rank for sight in sights}


TABLE = [
    ("gpu", "send", "gpu_not_ready", "local"),
    ("network", "send", "not_delivered", "either"),
    ("refused", "send", "not_transmitted", "local"),
    ("proxy", "recv", "not_started", "local"),
]


@pytest.mark.parametrize(("kind", "direction", "state", "cause"), TABLE)
def test_the_table_of_states(kind: str, direction: str, state: str, cause: str) -> None:
    broken = Broken(kind, 1, call=0, after=0, peer=2)  # type: ignore[arg-type]
    (team,) = teams_of(sights_of(stalled(EIGHT, broken))).values()
    seen = next(flow for key, flow in team.flows.items() if key[0] == 1 and key[3] == direction)
    assert (state_of(seen), cause_of(seen, team.other_end(seen))) == (state, cause)
    assert isinstance(team, Team)


@pytest.mark.parametrize("count", range(2, 40))
def test_trees_from_the_bottom_up_are_those_from_the_top_down(count: int) -> None:
    for parents, second in ((first_parents(count), False), (second_parents(count), True)):
        children = tree_children(count, second)
        expected = {child: node for node, of in children.items() for child in of}
        assert {node: parent for node, parent in enumerate(parents) if parent is not None} == expected
        edges = {edge for child, node in expected.items() for edge in ((child, node), (node, child))}
        assert parents_for(count, edges, second) == parents


def test_a_ring_is_no_tree() -> None:
    assert parents_for(4, {(0, 1), (1, 2), (2, 3), (3, 0)}, False) is None
