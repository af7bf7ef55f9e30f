"""What is slow inside NCCL is found and named, and what only looks so is not: a small sample of `bench/nccl_slow.py`, and rules
one by one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracer.nccl.slow_play import play
from tracer.nccl.slow_ring import Member, pass_round
from tracer.nccl.slow_run import faulty, harmless
from tracer.nccl.slow_world import FAULTS, HARMLESS, FaultName, HarmlessName

from robust_run.tracer.nccl.slow_fault import Lasting, told
from robust_run.tracer.nccl.slow_pairs import Change, PairChanges, is_slow_among, slow_both_ways
from robust_run.tracer.nccl.slow_signs import Sign, Wire, _of_others, by_comm, signs
from robust_run.tracer.nccl.slowness import CLOSED, EVERYBODY, FEWEST, FORGOTTEN, NEEDED, WARM_UP, Slowness
from robust_run.tracer.nccl.work import CommWork, FlowWork, RankWork

#: Seeds of the tuning set, with which thresholds were chosen; the bench has others.
SEED = 5


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_once_it_lasts_and_the_component_is_named(name: FaultName) -> None:
    case = faulty(name, SEED)
    heard = play(case)
    assert heard.is_right, (heard.fault, case.fault)
    assert heard.fault is not None
    assert heard.fault.share > 0
    assert set(heard.fault.nodes) <= {case.job.node(rank) for rank in heard.fault.ranks}


@pytest.mark.parametrize("name", HARMLESS)
def test_nothing_is_told_where_nothing_is_wrong(name: HarmlessName) -> None:
    heard = play(harmless(name, SEED, for_s=600.0))
    assert heard.fault is None, heard.fault
    assert heard.windows > WARM_UP


def test_of_two_nodes_a_slow_nic_is_told_by_the_other_groups_of_the_same_nodes() -> None:
    case = faulty("nic", SEED, nodes=2)
    assert case.job.per_node > 1
    heard = play(case)
    assert heard.is_right, (heard.fault, case.fault)
    assert heard.fault is not None
    assert "in both directions: the NIC of one of the two" in heard.fault.sentence
    assert play(harmless("congestion", SEED, for_s=400.0, nodes=2)).fault is None


def pair(first: int, now: float, other: float = 1.0, nodes: tuple[str, str] = ("n0", "n1")) -> PairChanges:
    """Two ranks whose ways to each other take so many times as long as they did."""
    there, back = Wire(first, first + 8), Wire(first + 8, first)
    return PairChanges(frozenset(nodes), {there: Change(0.01, 0.01 * now, 20), back: Change(0.01, 0.01 * other, 20)})


def test_both_ways_of_a_group_of_two_are_compared_with_other_groups_of_the_same_nodes() -> None:
    well = {1: pair(1, 1.0), 2: pair(2, 1.1, 0.9)}
    assert list(slow_both_ways({**well, 3: pair(3, 2.0, 1.9)})) == [3]
    assert slow_both_ways({3: pair(3, 2.0, 1.9)}) == {}, "alone it may be the fabric"
    assert slow_both_ways({1: pair(1, 2.0, 1.9), 3: pair(3, 2.0, 1.9)}) == {}, "all are alike"
    assert slow_both_ways({**well, 3: pair(3, 2.0, 1.0)}) == {}, "one way is the matter of the group alone"
    one_way = {**well, 3: pair(3, 1.4, 1.0)}
    assert is_slow_among(one_way, 3, Wire(3, 11))
    assert not is_slow_among({**one_way, 1: pair(1, 1.2, 1.2), 2: pair(2, 1.1, 1.1)}, 3, Wire(3, 11)), "a busy fabric"
    elsewhere = pair(1, 1.0, nodes=("n0", "n2"))
    assert slow_both_ways({1: elsewhere, 3: pair(3, 2.0, 1.9)}) == {}, "those lead elsewhere"


def test_the_model_slows_down_what_it_says() -> None:
    """A wire that takes twice as long is in use twice as long, and the GPU after it starves."""

    def wire(factor: float) -> Member:
        return Member(offered_at_s=0.0, gpu_at_s=0.5, gpu_s=0.001, wire_s=0.01 * factor, flush_s=0.0)

    well = pass_round([wire(1.0) for _ in range(4)], 12, lambda: 1.0)
    slow = pass_round([wire(2.0), *[wire(1.0) for _ in range(3)]], 12, lambda: 1.0)
    assert slow.sends[0].working_s == pytest.approx(2 * well.sends[0].working_s)
    assert slow.sends[1].working_s == pytest.approx(well.sends[1].working_s)
    assert slow.receives[1].first_s > well.receives[1].first_s
    late = pass_round([Member(0.0, 0.7, 0.001, 0.01, 0.0), *[wire(1.0) for _ in range(3)]], 12, lambda: 1.0)
    assert late.receives[0].working_s == pytest.approx(0.2, abs=0.05)
    assert late.receives[1].working_s < 0.05


# ---- rules, one by one
def work(
    rank: int,
    *,
    wire_s: float = 0.01,
    late_s: float = 0.0,
    held_s: float = 0.0,
    ran: float = 1.0,
    ops: int = 2,
    of: int = 4,
) -> RankWork:
    """Two operations of ten steps each, in two seconds, round a ring of one rank a node."""
    flows = (
        FlowWork(
            7, rank, (rank + 1) % of, "send", 10 * ops, 0, 1.0, held_s * ops, wire_s * 10 * ops, wire_s * 10 * ops
        ),
        FlowWork(7, rank, (rank - 1) % of, "recv", 10 * ops, 0, 1.0, 0.0, late_s * ops, late_s * ops),
    )
    comms = (CommWork(7, "dp", rank, of, ops),)
    return RankWork(
        rank=rank,
        node=f"n{rank}",
        length_s=2.0,
        flows=flows if ops else (),
        comms=comms,
        proxy_busy_s=2.0,
        proxy_ran_s=2.0 * ran,
    )


def found(now: Sequence[RankWork], past: Sequence[RankWork] | None = None, usual_late_s: float = 0.0):  # type: ignore[no-untyped-def]
    before = by_comm(past if past is not None else [work(rank) for rank in range(4)])[7]
    return signs(by_comm(now)[7], {member.rank: member for member in before}, usual_late_s)


def test_a_wire_that_takes_longer_than_it_did() -> None:
    now = [work(0), work(1, wire_s=0.02), work(2), work(3)]
    wires = found(now).wires
    assert list(wires) == [Wire(1, 2)]
    assert wires[Wire(1, 2)].cost_s == pytest.approx(0.1)


def test_wires_that_are_slower_all_of_them_and_one_that_always_was_are_not_slow() -> None:
    assert found([work(rank, wire_s=0.03) for rank in range(4)]).wires == {}
    far = [work(rank, wire_s=0.05 if rank == 2 else 0.01) for rank in range(4)]
    assert found(far, far).wires == {}


def test_a_gpu_that_leaves_data_waiting_unless_it_is_kept_from_sending() -> None:
    assert list(found([work(0), work(1, late_s=0.2), work(2), work(3)]).gpus) == [1]
    assert found([work(0), work(1, late_s=0.2, held_s=0.2), work(2), work(3)]).gpus == {}
    assert found([work(rank, late_s=0.2) for rank in range(4)]).gpus == {}
    assert found([work(0), work(1, late_s=0.2), work(2), work(3)], usual_late_s=0.15).gpus == {}


def test_a_proxy_thread_that_runs_less_than_the_others_and_than_it_did() -> None:
    now = [work(0), work(1), work(2, ran=0.7), work(3)]
    assert list(found(now).proxies) == [2]
    assert found(now, now).proxies == {}
    assert found([work(rank, ran=0.6) for rank in range(4)]).proxies == {}


def test_nothing_is_slow_where_the_past_of_one_is_not_known() -> None:
    now = [work(0), work(1, wire_s=0.02, late_s=0.3, ran=0.2), work(2), work(3)]
    assert not any(found(now, [work(rank) for rank in range(3)]))


# ---- windows
WELL = [work(rank) for rank in range(4)]
SLOW = [work(0), work(1, wire_s=0.03), work(2), work(3)]


def after_a_while(windows: Sequence[Sequence[RankWork]], slowness: Slowness | None = None) -> Slowness:
    slowness = slowness or Slowness()
    for works in windows:
        slowness = slowness.hear(works)
    return slowness


def suspicious() -> Slowness:
    """A job in which all ranks were asked for just now."""
    slowness = after_a_while([WELL] * (WARM_UP + FEWEST))
    assert not slowness.asks
    slowness = slowness.hear(SLOW)
    assert slowness.asks
    return slowness


def test_all_are_asked_for_once_and_what_lasts_is_told() -> None:
    slowness = suspicious().hear(SLOW, past=WELL)
    told = [slowness := slowness.hear(SLOW) for _ in range(NEEDED - 1)]
    assert [of.fault() is not None for of in told] == [*[False] * (NEEDED - 2), True]
    assert not any(of.asks for of in told)
    fault = told[-1].fault()
    assert fault is not None
    assert (fault.component, fault.ranks, fault.nodes, fault.comm) == ("link", (1, 2), ("n1", "n2"), "dp")
    assert fault.sentence == (
        "the way from rank 1 (n1) to rank 2 (n2) is slow: a step is under way for 30 ms from rank 1 to rank 2, 10 ms are usual; "
        "it costs 20% of the time between two operations of dp"
    )


def test_one_good_window_between_and_nothing_is_told() -> None:
    slowness = suspicious().hear(SLOW, past=WELL)
    assert after_a_while([SLOW, WELL, SLOW], slowness).fault() is None


def test_nothing_is_judged_while_ranks_warm_up() -> None:
    assert not after_a_while([*[WELL] * (WARM_UP - 4), *[SLOW] * 4]).asks


def test_windows_in_which_nothing_is_completed_say_nothing_and_are_added_to_the_next() -> None:
    idle = [work(rank, ops=0) for rank in range(4)]
    slowness = suspicious().hear(SLOW, past=WELL)
    slowness = after_a_while([idle, SLOW, idle, SLOW], slowness)
    assert slowness.fault() is not None


def test_where_things_are_suspicious_all_the_time_all_are_asked_for_now_and_then() -> None:
    slowness, asked = suspicious(), 0
    slower = list(SLOW)
    for number in range(400):
        slower = [work(rank, wire_s=0.03 * (1 + 0.1 * number)) for rank in range(4)]  # nothing becomes usual
        slowness = slowness.hear(slower)
        asked += slowness.asks
    assert 0 < asked * EVERYBODY < 400 * 0.4


def test_a_member_that_is_not_seen_leaves_its_communicator_unjudged() -> None:
    slowness = suspicious().hear(SLOW[:3], past=WELL)
    assert after_a_while([SLOW[:3]] * 6, slowness).fault() is None


def lasting(comm: str, wires: Sequence[Wire] = (), gpus: Sequence[int] = (), proxies: Sequence[int] = ()) -> Lasting:
    signs_ = (Sign(0.1, 2.0, "as seen"),) * NEEDED
    return Lasting(comm, dict.fromkeys(wires, signs_), dict.fromkeys(gpus, signs_), dict.fromkeys(proxies, signs_), 1.0)


#: Three nodes of two ranks each.
HOSTS = {rank: f"n{rank // 2}" for rank in range(6)}

NAMED = {
    "one wire": ([lasting("a", [Wire(0, 2)])], ("link", (0, 2))),
    "to a rank and from it": ([lasting("a", [Wire(0, 2), Wire(2, 4)])], ("nic", (2,))),
    "both ways between two": ([lasting("a", [Wire(0, 2), Wire(2, 0)])], ("link", (0, 2))),
    "all of a node": (
        [lasting("a", [Wire(0, 2), Wire(2, 4)]), lasting("b", [Wire(1, 3), Wire(3, 5)])],
        ("node", (2, 3)),
    ),
    "two nodes, all rails": ([lasting("a", [Wire(0, 2)]), lasting("b", [Wire(1, 3)])], ("link", (0, 2))),
    "one late GPU": ([lasting("a", gpus=[2])], ("gpu", (2,))),
    "all GPUs of a node": ([lasting("a", gpus=[2]), lasting("b", gpus=[3])], ("node", (2, 3))),
    "a proxy thread makes wires slow": ([lasting("a", [Wire(0, 2)], proxies=[0])], ("proxy", (0,))),
    "a slow wire goes before a late GPU": ([lasting("a", [Wire(0, 2)], gpus=[4])], ("link", (0, 2))),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_slow_things_have_in_common_is_named(what: str) -> None:
    found, expected = NAMED[what]
    fault = told(found, HOSTS)
    assert fault is not None
    assert (fault.component, fault.ranks) == expected
    assert fault.share == pytest.approx(0.1)
    assert "\n" not in fault.sentence


def test_nothing_slow_is_nothing_told() -> None:
    assert told([], HOSTS) is None


def test_a_communicator_in_which_nothing_goes_on_is_forgotten() -> None:
    slowness = suspicious().hear(SLOW, past=WELL)
    slowness = after_a_while([SLOW] * NEEDED, slowness)
    assert slowness.fault() is not None
    assert after_a_while([[]] * FORGOTTEN, slowness).fault() is None
    assert after_a_while([[]] * CLOSED, slowness).comms == {}


@given(st.lists(st.floats(0, 10), min_size=2, max_size=9))
def test_the_median_of_all_others(values: list[float]) -> None:
    found = _of_others(dict(enumerate(values)))
    assert found == {place: median_low(values[:place] + values[place + 1 :]) for place in range(len(values))}
