"""Communication stalls, and kernels tell between which nodes: that node is named, soon; what proves nothing changes nothing."""

from __future__ import annotations

import msgspec
import pytest
from tracer.verdict.scenes import FAULTS, LAYOUTS, Call, World, data_parallel, faulty, flat, seen_as

from robust_run.tracer.types import BACKWARD, Frame, Op, Scene, StuckConnection, ThreadStack, TraceVerdict
from robust_run.tracer.verdict import RankPatience, look

WAITS = Frame("wait", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000)
SLEEPS = Frame("get", "/home/me/data.py", 88)


def in_function(*frames: Frame) -> tuple[tuple[ThreadStack, ...], ...]:
    stack = (ThreadStack(is_main=True, frames=frames),)
    return (stack, stack, stack)


def node(number: int) -> str:
    return f"10.77.0.{10 + number}"


def stalled_world(size: int = 4, per_node: int = 1, *, waited_s: float = 5.5) -> Scene:
    """All have come to an all_reduce, and nothing moves. Node n has the address 10.77.0.(10 + n)."""
    layout = data_parallel(size)
    programs = flat([program[1:] for program in layout.programs(3)])
    world = World(layout.groups, programs, frozen={size - 1}, per_node=per_node).run()
    return addressed(world.scene(waited_s=waited_s), per_node)


def addressed(scene: Scene, per_node: int = 1) -> Scene:
    ranks = tuple(msgspec.structs.replace(sight, address=node(sight.rank // per_node)) for sight in scene.ranks)
    return msgspec.structs.replace(scene, ranks=ranks)


def link(
    here: str, there: str, *, retries: int = 5, unsent: int = 48_000, ports: tuple[int, int] = (4000, 5000)
) -> StuckConnection:
    return StuckConnection(here=f"{here}:{ports[0]}", there=f"{there}:{ports[1]}", unsent_bytes=unsent, retries=retries)


def stuck(scene: Scene, *pairs: tuple[int, int], per_node: int = 1, **how: int) -> Scene:
    """The same scene, where the first rank of each pair has data for the node of the second that is not acknowledged."""
    for rank in {rank for rank, _ in pairs}:
        ends = [(node(one // per_node), node(other // per_node)) for one, other in pairs if one == rank]
        scene = seen_as(scene, rank, links=tuple(link(here, there, **how) for here, there in ends))
    return scene


def verdict_on(scene: Scene) -> TraceVerdict:
    found = look(scene, RankPatience()).verdict
    assert found is not None
    assert found.kind == "comm_stall"
    assert len(found.sentence) <= 250
    return found


def test_one_dead_link_names_one_end_of_it_and_says_which_other_it_may_be() -> None:
    found = verdict_on(stuck(stalled_world(), (1, 2), (2, 1)))
    assert (found.rule, found.confidence) == ("dead_link", "medium")
    assert (found.ranks, found.nodes) == ((2,), ("gpu-02",))
    assert found.over_evicted == (2,)
    assert found.sentence.startswith(
        "the network between gpu-01 and gpu-02 does not carry data: rank 1 has 48 kB unacknowledged after 5 "
        "retransmissions; 4 ranks have been waiting for 5.5 s in all_reduce #"
    )
    assert found.evidence[0] == (
        "rank 1 (gpu-01) to gpu-02: 48 kB from 10.77.0.11:4000 to 10.77.0.12:5000 unacknowledged after 5 retransmissions"
    )


@pytest.mark.parametrize("pairs", [[(1, 2)], [(2, 1)]])
def test_it_is_enough_that_one_end_has_something_to_send(pairs: list[tuple[int, int]]) -> None:
    assert verdict_on(stuck(stalled_world(), *pairs)).nodes == ("gpu-02",)


def test_of_two_ends_the_one_with_the_lowest_rank_stays() -> None:
    assert verdict_on(stuck(stalled_world(), (3, 0), (0, 3))).ranks == (3,)


def test_all_ranks_of_a_node_share_its_network() -> None:
    found = verdict_on(stuck(stalled_world(8, per_node=2), (3, 4), per_node=2))
    assert (found.ranks, found.nodes) == ((4, 5), ("gpu-02",))


@pytest.mark.parametrize(
    ("pairs", "confidence"),
    [
        ([(0, 1), (2, 1)], "medium"),
        ([(1, 0), (1, 2)], "medium"),
        ([(0, 1), (1, 0), (1, 2), (2, 1)], "high"),
        ([(0, 1), (1, 2), (3, 1)], "high"),
    ],
)
def test_what_all_dead_links_have_in_common_is_the_culprit(pairs: list[tuple[int, int]], confidence: str) -> None:
    found = verdict_on(stuck(stalled_world(), *pairs))
    assert (found.rule, found.ranks, found.nodes, found.over_evicted) == ("unreachable_node", (1,), ("gpu-01",), ())
    assert found.confidence == confidence
    assert found.sentence.startswith("the network between gpu-01 and gpu-00")


def test_links_that_have_nothing_in_common_are_all_told_of() -> None:
    found = verdict_on(stuck(stalled_world(8), (0, 1), (2, 3), (6, 7)))
    assert (found.rule, found.ranks, found.confidence) == ("dead_links", (1, 3, 7), "low")
    assert found.over_evicted == found.ranks
    assert "gpu-00 and gpu-01, gpu-02 and gpu-03 and gpu-06 and gpu-07" in found.sentence


def test_a_switch_that_fell_apart_costs_the_smaller_part_at_most() -> None:
    halves = [(one, other) for one in (0, 1, 2, 3, 4) for other in (5, 6, 7)]
    found = verdict_on(stuck(stalled_world(8), *halves))
    assert found.ranks == (5, 6, 7)
    assert len(found.sentence) <= 250


def test_a_dead_node_among_very_many_makes_a_short_sentence() -> None:
    found = verdict_on(stuck(stalled_world(200), *((rank, 7) for rank in range(200) if rank != 7)))
    assert (found.rule, found.ranks) == ("unreachable_node", (7,))
    assert "and 197 more" in found.sentence
    assert len(found.evidence) <= 40


# -- where waits end


def test_a_rank_that_has_what_it_needs_goes_on_and_waits_for_the_one_that_was_not_reached() -> None:
    """The root of a broadcast is done with it; its data never comes to rank 2, which is missing in what follows."""
    groups = {"0": (tuple(range(4)), "default_pg")}
    programs = [[Call("collective", op="broadcast", peer=0), Call("collective", op="all_reduce")] for _ in range(4)]
    world = World(groups, programs, frozen={2}, per_node=1).run()
    scene = addressed(world.scene(waited_s=5.5))
    ranks = list(scene.ranks)
    for rank in (0, 1, 3):
        trace = ranks[rank].trace
        assert trace is not None
        (broadcast,) = trace.ops
        done = msgspec.structs.replace(broadcast, state="done", done_at_s=broadcast.at_s)
        waits = msgspec.structs.replace(broadcast, op="all_reduce", seq=2, peer=-1)
        ranks[rank] = msgspec.structs.replace(ranks[rank], trace=msgspec.structs.replace(trace, ops=(done, waits)))
    found = verdict_on(stuck(msgspec.structs.replace(scene, ranks=tuple(ranks)), (0, 2)))
    assert (found.rule, found.ranks) == ("dead_link", (2,))
    assert "4 ranks have been waiting" in found.sentence and "broadcast #1" in found.sentence


def test_a_send_that_does_not_arrive_between_two_stages() -> None:
    groups = {"0": ((0, 1, 2), "default_pg")}
    programs = [
        [Call("send", peer=1), Call("recv", peer=1)],
        [Call("recv", peer=0), Call("send", peer=2), Call("send", peer=0)],
        [Call("recv", peer=1)],
    ]
    scene = addressed(World(groups, programs, frozen={0}, per_node=1).run().scene(waited_s=5.5))
    found = verdict_on(stuck(scene, (0, 1)))
    assert (found.rule, found.ranks) == ("dead_link", (1,))
    assert "between gpu-00 and gpu-01" in found.sentence


def unlogged_wait(*frames: Frame) -> Scene:
    """Ranks 0, 2 and 3 wait for rank 1, whose ring knows of no call; its stack is given."""
    scene = faulty(data_parallel(4), FAULTS["sleep"], 1, 1).scene(waited_s=5.5)
    ranks = tuple(msgspec.structs.replace(sight, node=f"gpu-{sight.rank:02d}") for sight in scene.ranks)
    return seen_as(addressed(msgspec.structs.replace(scene, ranks=ranks)), 1, stacks=in_function(*frames))


@pytest.mark.parametrize("pair", [(1, 3), (3, 1)])
def test_a_rank_that_is_missing_because_it_is_blocked_in_a_call_without_record(pair: tuple[int, int]) -> None:
    found = verdict_on(stuck(unlogged_wait(WAITS), pair))
    assert (found.rule, found.ranks) == ("dead_link", (3,))
    assert "between gpu-01 and gpu-03" in found.sentence


def test_a_rank_that_is_missing_for_another_reason_is_to_blame_itself() -> None:
    found = look(stuck(unlogged_wait(SLEEPS), (1, 3)), RankPatience()).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("hang", (1,))


def test_a_dead_link_elsewhere_does_not_explain_why_a_rank_is_missing() -> None:
    found = look(stuck(unlogged_wait(WAITS), (2, 3)), RankPatience()).verdict
    assert found is None or found.kind == "hang"


# -- what proves nothing


def stays_unproven(scene: Scene) -> bool:
    """Whether it is the same as without any evidence of links: no verdict before twice the patience."""
    return look(scene, RankPatience()).verdict is None


def test_without_such_evidence_a_stall_takes_longer_and_says_less() -> None:
    assert stays_unproven(stalled_world())
    found = verdict_on(stalled_world(waited_s=10.5))
    assert (found.rule, found.ranks) == ("all_arrived", (0, 1, 2, 3))


@pytest.mark.parametrize("how", [{"retries": 1}, {"retries": 0}, {"unsent": 0}])
def test_a_network_that_loses_a_packet_is_not_dead(how: dict[str, int]) -> None:
    assert stays_unproven(stuck(stalled_world(), (1, 2), (2, 1), **how))


def test_other_services_are_not_spoken_of() -> None:
    scene = seen_as(stalled_world(), 1, links=(link(node(1), "10.99.0.5"), link(node(1), "127.0.0.1")))
    assert stays_unproven(scene)
    late = verdict_on(msgspec.structs.replace(scene, at_s=scene.at_s + 5))
    assert late.rule == "all_arrived" and not any("10.99" in line for line in late.evidence)


def test_a_connection_within_a_node_is_no_link_between_nodes() -> None:
    assert stays_unproven(stuck(stalled_world(), (1, 1)))


@pytest.mark.parametrize("address", ["127.0.0.1", "", "10.0.0.1", "gpu-host", "::1"])
def test_addresses_that_do_not_tell_nodes_apart_are_of_no_use(address: str) -> None:
    scene = stalled_world()
    ranks = tuple(msgspec.structs.replace(sight, address=address) for sight in scene.ranks)
    scene = msgspec.structs.replace(scene, ranks=ranks)
    assert stays_unproven(seen_as(scene, 1, links=(link("10.0.0.9", address or "10.0.0.1"),)))


def test_a_network_that_nodes_do_not_announce_is_known_where_both_ends_are_seen() -> None:
    here, there = "192.168.5.1", "192.168.5.2"
    one_end = seen_as(stalled_world(), 1, links=(link(here, there, ports=(70, 80)),))
    assert stays_unproven(one_end)
    found = verdict_on(seen_as(one_end, 2, links=(link(there, here, ports=(80, 70)),)))
    assert (found.rule, found.nodes) == ("dead_link", ("gpu-02",))
    assert stays_unproven(seen_as(one_end, 2, links=(link(there, here, ports=(80, 71)),))), "another connection"


def test_addresses_are_compared_however_they_are_written() -> None:
    scene = stalled_world()
    ranks = tuple(msgspec.structs.replace(sight, address=f"FD00:0:0::{sight.rank}%eth0") for sight in scene.ranks)
    scene = msgspec.structs.replace(scene, ranks=ranks)
    assert verdict_on(seen_as(scene, 1, links=(link("[fd00::1]", "[fd00::2]"),))).nodes == ("gpu-02",)


def test_a_dead_link_outside_of_the_stalled_group_is_not_its_reason() -> None:
    layout = LAYOUTS["TP2xDP2"]
    programs = flat([program[1:] for program in layout.programs(3)])
    scene = World(layout.groups, programs, frozen={0}, per_node=1).run().scene(waited_s=5.5)
    stalled = addressed(scene)
    assert stays_unproven(stuck(stalled, (2, 3))), "only ranks 0 and 1 are in it"
    assert verdict_on(stuck(stalled, (0, 1))).ranks == (1,)


def test_time_counts_from_when_the_last_one_came() -> None:
    """Rank 3 wrote a checkpoint for a minute, and has come just now: its data is on its way."""
    layout = data_parallel(4)
    programs = [
        [Call("compute", seconds=60.0 if rank == 3 else 0.0), Call("collective", op="all_reduce")] for rank in range(4)
    ]
    scene = World(layout.groups, programs, frozen={3}, per_node=1).run().scene(waited_s=0.3)
    lossy = stuck(addressed(scene), (3, 2), retries=2)
    assert stays_unproven(scene)
    assert stays_unproven(lossy)
    assert verdict_on(msgspec.structs.replace(lossy, at_s=lossy.at_s + 5)).rule == "dead_link"


def test_nobody_waits_so_nothing_is_said() -> None:
    assert stays_unproven(stuck(stalled_world(waited_s=3.0), (1, 2)))


def test_a_stopped_rank_explains_a_stall_before_any_link_does() -> None:
    scene = seen_as(stuck(stalled_world(), (1, 2)), 3, state="T")
    found = look(scene, RankPatience()).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("stopped", (3,))


def test_children_that_hold_the_same_connection_count_once() -> None:
    scene = stuck(stalled_world(), (1, 2))
    sights = list(scene.ranks)
    (own,) = sights[1].processes
    sights[1] = msgspec.structs.replace(
        sights[1], processes=(own, msgspec.structs.replace(own, pid=999, is_rank=False, stacks=()))
    )
    found = verdict_on(msgspec.structs.replace(scene, ranks=tuple(sights)))
    assert sum("unacknowledged" in line for line in found.evidence) == 1


# -- what is no stall


@pytest.mark.parametrize("used", [{"cpu": 0.2}, {"io_bytes": 400_000}], ids=["CPU", "I/O"])
def test_gigabytes_may_take_their_time(used: dict[str, float]) -> None:
    """A member that moves bytes is no proof that the others get them, but it asks for patience."""
    moving = seen_as(stalled_world(waited_s=60.0), 2, **used)
    assert look(moving, RankPatience()).verdict is None
    assert verdict_on(seen_as(stalled_world(waited_s=601.0), 2, **used)).rule == "all_arrived"


def test_a_backward_pass_of_all_ranks_computes_unless_its_collectives_are_stuck() -> None:
    scene = stalled_world(waited_s=60.0)
    ranks = []
    for sight in scene.ranks:
        assert sight.trace is not None
        ops = tuple(op if op.state == "done" else msgspec.structs.replace(op, op=BACKWARD) for op in sight.trace.ops)
        ranks.append(msgspec.structs.replace(sight, trace=msgspec.structs.replace(sight.trace, ops=ops)))
    computes = msgspec.structs.replace(scene, ranks=tuple(ranks))
    assert look(computes, RankPatience()).verdict is None
    under_way = (Op(group="0", op="all_reduce", seq=9, state="waiting", at_s=1.0),)
    stuck_in_it = tuple(msgspec.structs.replace(sight, recorded=under_way) for sight in ranks)
    assert verdict_on(msgspec.structs.replace(computes, ranks=stuck_in_it)).kind == "comm_stall"
