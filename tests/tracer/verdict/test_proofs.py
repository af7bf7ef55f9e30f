"""What is proven, so that it may be acted on at once, and what looks the same and is a healthy job: that has torch's own time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tracer.verdict.looking import settled
from tracer.verdict.scenes import FAULTS, LAYOUTS, Call, World, ended, faulty, flat, seen_as

from robust_run.health.types import Finding
from robust_run.tracer.files.ring_format import DOUBTS
from robust_run.tracer.types import Frame, Group, Op, ProcessSight, RankTrace, Scene, ThreadStack, TraceVerdict
from robust_run.tracer.verdict import RankPatience, look, look_at_leftovers

SIGSTOP, SIGTSTP, SIGTTIN = 19, 20, 21


def verdict_on(scene: Scene) -> TraceVerdict:
    found = settled(scene)
    assert found is not None
    return found


def scene_of(fault: str, rank: int = 1, at: int = 1, layout: str = "DP4", waited_s: float = 6.0) -> Scene:
    return faulty(LAYOUTS[layout], FAULTS[fault], rank, at).scene(waited_s=waited_s)


def with_thread(scene: Scene, rank: int, *frames: Frame) -> Scene:
    """The same scene, with another thread in a rank's process."""
    process = scene.ranks[rank].processes[0]
    stacks = tuple((*sample, ThreadStack(frames=frames)) for sample in process.stacks)
    return seen_as(scene, rank, stacks=stacks)


# --- ranks that do nothing


def test_a_rank_that_sleeps_is_named_and_not_proven() -> None:
    found = verdict_on(scene_of("sleep"))
    assert (found.kind, found.ranks, found.confidence, found.proven) == ("hang", (1,), "high", False)


@pytest.mark.parametrize("used", [{"cpu": 1.0}, {"state": "R"}, {"starved": 0.9}, {"state": "D"}])
def test_however_a_rank_is_late_it_may_yet_come(used: dict[str, Any]) -> None:
    late = look(seen_as(scene_of("sleep", waited_s=700.0), 1, **used), RankPatience()).verdict
    assert late is not None
    assert not late.proven


def test_communication_that_stands_still_may_go_on() -> None:
    layout = LAYOUTS["TP2xDP2"]
    world = World(layout.groups, flat([program[1:] for program in layout.programs(3)]), frozen={1}).run()
    found = verdict_on(world.scene(waited_s=11.0))
    assert (found.kind, found.proven) == ("comm_stall", False)


def test_a_rank_that_waits_for_a_cpu_is_at_work() -> None:
    for used in ({"state": "R"}, {"starved": 0.9}):
        found = look(seen_as(scene_of("sleep", waited_s=30.0), 1, **used), RankPatience())
        assert found.verdict is None
        assert "waits for a CPU" in found.reason


# --- stopped


def test_one_rank_that_is_stopped_alone_is_proven() -> None:
    found = verdict_on(scene_of("stop"))
    assert (found.kind, found.ranks, found.proven) == ("stopped", (1,), True)


def test_a_rank_that_is_stopped_in_turns_is_not_stopped_for_good() -> None:
    """Two looks 5 s apart see it stopped; it ran in between."""
    first = seen_as(scene_of("stop"), 1, turns="7")
    asked = look(first, RankPatience())
    assert asked.verdict is None
    assert asked.again_s is not None
    later = msgspec.structs.replace(first, at_s=first.at_s + 5.5)
    for turns, proven in (("7", True), ("8", False)):
        found = look(seen_as(later, 1, turns=turns), RankPatience(), previous=first).verdict
        assert found is not None
        assert (found.kind, found.proven) == ("stopped", proven)


@pytest.mark.parametrize("by", [SIGTSTP, SIGTTIN, 0])
def test_a_rank_that_a_terminal_stopped_waits_for_a_person(by: int) -> None:
    found = verdict_on(seen_as(scene_of("stop"), 1, stopped_by=by))
    assert (found.kind, found.proven) == ("stopped", False)


def test_a_rank_that_is_throttled_by_stopping_it_runs_in_between() -> None:
    """As cpulimit does it."""
    assert not verdict_on(seen_as(scene_of("stop"), 1, cpu=0.2)).proven


def test_ranks_that_are_stopped_together_were_suspended_by_a_scheduler() -> None:
    scene = seen_as(scene_of("stop"), 2, state="T", stopped_by=SIGSTOP)
    found = verdict_on(scene)
    assert (found.kind, found.ranks, found.proven) == ("stopped", (1, 2), False)


def test_beside_a_debugger_a_stop_is_a_person() -> None:
    assert not verdict_on(seen_as(scene_of("stop"), 2, state="t")).proven


def test_who_is_stopped_on_a_node_that_does_not_answer_is_not_known() -> None:
    scene = scene_of("stop")
    assert not verdict_on(msgspec.structs.replace(scene, silent_nodes=("gpu-09",))).proven
    assert not verdict_on(msgspec.structs.replace(scene, world_size=5)).proven


def test_a_dead_process_that_is_not_collected_is_not_stopped() -> None:
    assert not verdict_on(seen_as(scene_of("stop"), 1, state="Z")).proven


# --- calls that can never be one call


@pytest.mark.parametrize("fault", ["size", "dtype", "operation", "skipped", "extra"])
def test_calls_that_differ_are_proven(fault: str) -> None:
    found = verdict_on(scene_of(fault))
    assert found.kind in ("mismatch", "desync")
    assert found.proven


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_uneven_parts_of_a_gather_are_allowed_and_prove_nothing(op: str) -> None:
    """NCCL takes them. Here two have come with uneven parts, and the third is late as any rank may be."""
    groups = {"0": ((0, 1, 2), "default_pg")}
    programs = [
        [Call("init"), *([Call("stuck")] if rank == 2 else []), Call("collective", op=op, numel=100 + rank)]
        for rank in range(3)
    ]
    found = verdict_on(World(groups, programs).run().scene())
    assert (found.kind, found.proven) == ("mismatch", False)


@pytest.mark.parametrize("fault", ["size", "operation", "skipped", "exit 0"])
def test_where_ranks_are_not_what_they_seem_their_calls_prove_nothing(fault: str) -> None:
    """One rank is enough: a world of its own, a time limit of its own, an error that it caught, groups made anew."""
    scene = scene_of(fault)
    assert verdict_on(scene).proven
    for doubt in DOUBTS.values():
        found = verdict_on(with_trace(scene, 3, doubts=(doubt,)))
        assert not found.proven, doubt


def test_torchs_own_record_that_does_not_answer_is_no_agreement() -> None:
    scene = scene_of("skipped")
    assert verdict_on(scene).proven
    ranks = [msgspec.structs.replace(sight, is_silent=sight.rank == 1) for sight in scene.ranks]
    assert not verdict_on(msgspec.structs.replace(scene, ranks=tuple(ranks))).proven


@pytest.mark.parametrize("state", ["failed", "issued"])
def test_a_call_that_nobody_waits_in_any_more_is_history(state: str) -> None:
    """Calls differed, and the program caught the error, or never asks for the result. Later ranks wait for a late one."""
    scene = scene_of("size")
    place = max(op.seq for op in traced(scene, 0).ops if op.state == "waiting")
    for sight in scene.ranks:
        ops = [
            msgspec.structs.replace(op, state=state) if op.seq == place and op.state == "waiting" else op
            for op in traced(scene, sight.rank).ops
        ]
        scene = with_trace(scene, sight.rank, ops=tuple(ops))
    found = look(scene, RankPatience()).verdict
    assert found is None or not found.proven


def test_a_peer_that_does_not_list_the_group_may_be_no_member_of_it() -> None:
    """Rank 0 trains, and shares a group with a service that calls itself rank 1 there."""
    groups = {"0": ((0, 1), "default_pg"), "1": ((0, 1), "service")}
    programs = [[Call("recv", group="1", peer=1)], [Call("collective", group="0", op="all_reduce")]]
    circle = World(groups, programs).run().scene()
    assert verdict_on(circle).proven
    own = tuple(group for group in traced(circle, 1).groups if group.name == "0")
    found = settled(with_trace(circle, 1, groups=own))
    assert found is None or not found.proven


def traced(scene: Scene, rank: int) -> RankTrace:
    trace = scene.ranks[rank].trace
    assert trace is not None
    return trace


def with_trace(scene: Scene, rank: int, **changes: Any) -> Scene:
    """The same scene; a rank's ring has this instead."""
    ranks = list(scene.ranks)
    ranks[rank] = msgspec.structs.replace(ranks[rank], trace=msgspec.structs.replace(traced(scene, rank), **changes))
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


def retyped(scene: Scene, rank: int, dtype: str, times: int) -> Scene:
    """The same scene; the call that a rank waits in is of this type and so many times as long."""
    sight = scene.ranks[rank]
    assert sight.trace is not None
    ops = [
        msgspec.structs.replace(op, dtype=dtype, numel=times * op.numel) if op.state == "waiting" else op
        for op in sight.trace.ops
    ]
    assert ops != list(sight.trace.ops)
    trace = msgspec.structs.replace(sight.trace, ops=tuple(ops))
    ranks = list(scene.ranks)
    ranks[rank] = msgspec.structs.replace(sight, trace=trace)
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("dtype", "times", "proven"), [("int32", 1, False), ("float16", 2, False), ("float16", 1, True)]
)
def test_backends_do_not_compare_types_so_calls_that_move_as_many_bytes_go_through(
    dtype: str, times: int, proven: bool
) -> None:
    program = [Call("collective", op="all_reduce")]
    all_have_come = World({"0": ((0, 1, 2, 3), "default_pg")}, [program] * 4, frozen={3}).run().scene()
    scene = retyped(all_have_come, 0, dtype, times)
    found = verdict_on(scene)
    assert (found.kind, found.proven) == ("mismatch", proven)


def test_rings_that_torch_s_own_records_contradict_prove_nothing() -> None:
    scene = scene_of("skipped")
    assert verdict_on(scene).proven
    for ahead, proven in (((5, 5, 5, 5), True), ((0, 1, 0, 0), False)):
        ranks = [
            msgspec.structs.replace(
                sight,
                recorded=tuple(
                    Op(group=op.group, op=op.op, seq=op.seq + more, state="issued", at_s=op.at_s)
                    for op in (sight.trace.ops if sight.trace is not None else ())
                    if op.op == "all_reduce"
                ),
            )
            for sight, more in zip(scene.ranks, ahead, strict=True)
        ]
        found = verdict_on(msgspec.structs.replace(scene, ranks=tuple(ranks)))
        assert found.proven is proven, ahead


# --- circles


def circle() -> Scene:
    """Two ranks that each want to receive first."""
    groups = {"0": ((0, 1), "default_pg")}
    programs = [[Call("init"), Call("recv", peer=1 - rank), Call("send", peer=1 - rank)] for rank in range(2)]
    return World(groups, programs).run().scene()


def test_a_circle_of_ranks_is_proven() -> None:
    found = verdict_on(circle())
    assert (found.kind, found.proven) == ("desync", True)


def with_calls(scene: Scene, rank: int, *more: Op) -> Scene:
    """The same scene, with further calls of a rank at the end of its ring."""
    sight = scene.ranks[rank]
    assert sight.trace is not None
    trace = msgspec.structs.replace(sight.trace, ops=(*sight.trace.ops, *more))
    ranks = [msgspec.structs.replace(sight, trace=trace) if one is sight else one for one in scene.ranks]
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


def test_a_circle_that_what_follows_an_asynchronous_call_may_break_is_not() -> None:
    """`Work.get_future().then(send)` runs in a thread of C++, which no stack shows."""
    issued = Op(group="side", op="all_reduce", seq=1, state="issued", at_s=0.5)
    done = msgspec.structs.replace(issued, state="done", done_at_s=0.6)
    assert not verdict_on(with_calls(circle(), 0, issued)).proven
    assert verdict_on(with_calls(circle(), 0, done)).proven


def circle_through_a_group(*more: Group, record: int = 0) -> Scene:
    """Rank 0 waits for rank 1 in a collective, and rank 1 for rank 0 in a `recv`. `record`: what torch counts of rank 1 there."""
    side = Group(name="side", ranks=(0, 1))
    groups = {"0": ((0, 1, 2, 3), "default_pg")}
    stuck = [Call("init"), Call("stuck")]
    scene = World(groups, [stuck, [Call("init"), Call("recv", peer=0)], stuck, stuck]).run().scene()
    waits = Op(group="side", op="all_reduce", seq=2, state="waiting", at_s=5.0, waiting_at_s=5.0)
    done = Op(group="side", op="all_reduce", seq=1, state="done", at_s=4.0)
    scene = with_calls(with_calls(scene, 0, done, waits), 1, done)
    ranks = []
    for sight, count in zip(scene.ranks, (2, record, 0, 0), strict=True):
        assert sight.trace is not None
        trace = msgspec.structs.replace(sight.trace, groups=(*sight.trace.groups, side, *more))
        recorded = (msgspec.structs.replace(waits, seq=count, state="issued"),) if count else ()
        ranks.append(msgspec.structs.replace(sight, trace=trace, recorded=recorded))
    in_a_call = scene.ranks[1].processes[0].stacks
    return seen_as(msgspec.structs.replace(scene, at_s=20.0, ranks=tuple(ranks)), 0, stacks=in_a_call)


@pytest.mark.parametrize(("record", "proven"), [(0, True), (1, True), (2, False)])
def test_a_call_that_only_torch_s_own_record_knows_was_made(record: int, proven: bool) -> None:
    """A functional collective that nobody waits for is not in the ring."""
    assert verdict_on(circle_through_a_group(record=record)).proven is proven


def test_groups_that_have_one_name_one_after_the_other_are_not_told_apart() -> None:
    again = Group(name="side", ranks=(0, 2))
    found = look(circle_through_a_group(again), RankPatience()).verdict
    assert found is None or not found.proven
    assert verdict_on(circle_through_a_group(Group(name="side", ranks=(4, 5)))).proven, (
        "others may call theirs the same"
    )


def test_what_too_many_threads_do_is_not_known() -> None:
    scene = circle()
    process = scene.ranks[0].processes[0]
    idle = ThreadStack(frames=())
    many = tuple((*sample, *[idle] * 128) for sample in process.stacks)
    assert not verdict_on(seen_as(scene, 0, stacks=many)).proven


def test_where_ddp_is_used_records_that_are_silent_are_no_agreement() -> None:
    """A rank that is through with `Join` makes calls of its own that others make in C++."""
    scene = scene_of("skipped")
    passed = Op(group="0", op="ddp_backward", seq=1, state="done", at_s=0.1)
    assert not verdict_on(with_calls(scene, 0, passed)).proven


def test_who_left_after_many_other_calls_may_have_made_the_one_that_is_waited_for() -> None:
    """Only the newest calls are looked at: a call of a group that they do not show was made before them, or never."""
    scene = scene_of("exit 0")
    sight = scene.ranks[1]
    assert sight.trace is not None
    others = tuple(Op(group="side", op="all_reduce", seq=seq, state="done", at_s=0.5) for seq in range(9, 300))
    trace = msgspec.structs.replace(sight.trace, ops=others)
    ranks = [msgspec.structs.replace(sight, trace=trace) if one is sight else one for one in scene.ranks]
    found = look(msgspec.structs.replace(scene, ranks=tuple(ranks)), RankPatience()).verdict
    assert found is None or not found.proven


def test_a_circle_that_another_thread_of_the_program_may_break_is_not() -> None:
    mine = Frame("send_soon", "/home/me/train.py", 70)
    assert not verdict_on(with_thread(circle(), 0, mine)).proven


STANDARD, PACKAGES = "/v/lib/python3.11", "/v/lib/python3.11/site-packages"
BOOT = (Frame("run", f"{STANDARD}/threading.py", 975), Frame("_bootstrap", f"{STANDARD}/threading.py", 1002))
MAY_ACT = {
    "a timer, whose function is not seen before it runs": (Frame("wait", f"{STANDARD}/threading.py", 300), *BOOT),
    "a server of the standard library": (
        Frame("select", f"{STANDARD}/selectors.py", 415),
        Frame("serve_forever", f"{STANDARD}/socketserver.py", 232),
    ),
    "a library's": (Frame("poll", f"{PACKAGES}/somelib/agent.py", 7), *BOOT),
    "a task of a pool": (
        Frame("sleep", f"{STANDARD}/x.py", 1),
        Frame("_worker", f"{STANDARD}/concurrent/futures/thread.py", 58),
    ),
    "a feeder that runs code of the program": (
        Frame("__getstate__", "/home/me/train.py", 3),
        Frame("_feed", f"{STANDARD}/multiprocessing/queues.py", 244),
    ),
}
DO_ONE_THING = {
    "of a pool, idle": (Frame("_worker", f"{STANDARD}/concurrent/futures/thread.py", 81), *BOOT),
    "feeding a queue": (
        Frame("wait", f"{STANDARD}/threading.py", 320),
        Frame("_feed", f"{STANDARD}/multiprocessing/queues.py", 231),
    ),
    "pinning batches": (
        Frame("_pin_memory_loop", f"{PACKAGES}/torch/utils/data/_utils/pin_memory.py", 55),
        *BOOT,
    ),
}


@pytest.mark.parametrize("what", MAY_ACT)
def test_whatever_thread_runs_python_may_break_a_circle(what: str) -> None:
    assert not verdict_on(with_thread(circle(), 0, *MAY_ACT[what])).proven


@pytest.mark.parametrize("what", DO_ONE_THING)
def test_but_for_those_that_are_known_to_do_one_thing(what: str) -> None:
    assert verdict_on(with_thread(circle(), 0, *DO_ONE_THING[what])).proven


def test_a_circle_of_ranks_that_are_elsewhere_is_none() -> None:
    """Rings say that both receive; what the main thread is really in is something else."""
    elsewhere = ThreadStack(is_main=True, frames=(Frame("compute", "/home/me/train.py", 12),))
    assert not verdict_on(seen_as(circle(), 1, stacks=((elsewhere,), (elsewhere,)))).proven
    assert not verdict_on(seen_as(circle(), 1, stacks=())).proven


# --- peers that have ended


def test_a_peer_that_ended_while_others_wait_for_it_is_proven() -> None:
    found = verdict_on(scene_of("exit 0"))
    assert (found.rule, found.ranks, found.proven) == ("early_exit", (1,), True)


def crashed_at_exit(scene: Scene, rank: int) -> Scene:
    return ended(scene, rank, -11, 1.0, had_ended=True)


def test_so_is_one_that_crashed_when_its_program_had_ended() -> None:
    found = verdict_on(crashed_at_exit(scene_of("exit 0"), 1))
    assert (found.rule, found.ranks, found.proven) == ("early_exit", (1,), True)
    assert found.sentence.startswith("rank 1 has come to the end of its program, but")


def test_nobody_is_said_to_have_failed_where_one_crashed_so_and_nobody_waits_for_it() -> None:
    assert look(crashed_at_exit(scene_of("exit 0", waited_s=0.0), 1), RankPatience()).verdict is None


def test_where_the_others_lost_their_connections_to_it_they_needed_it() -> None:
    lost = Finding(kind="peer_connection", line="RuntimeError: Connection closed by peer")
    found = verdict_on(ended(crashed_at_exit(scene_of("exit 0"), 1), 0, 1, 1.5, finding=lost))
    assert (found.rule, found.ranks, found.confidence) == ("exited", (1,), "high")


def receiving_from_any(gone: tuple[int, ...]) -> Scene:
    groups = {"0": ((0, 1, 2), "default_pg")}
    programs = [[Call("init"), Call("exit")] if rank in gone else [Call("init"), Call("stuck")] for rank in range(3)]
    scene = World(groups, programs).run().scene()
    sight = scene.ranks[0]
    op = Op(group="0", op="recv_any", seq=1, state="waiting", at_s=1.0, waiting_at_s=1.0)
    trace = msgspec.structs.replace(sight.trace, ops=(*sight.trace.ops, op))
    ranks = (msgspec.structs.replace(sight, trace=trace), *scene.ranks[1:])
    return msgspec.structs.replace(scene, at_s=20.0, ranks=ranks)


def test_of_many_senders_one_that_is_left_is_enough() -> None:
    found = look(receiving_from_any((1,)), RankPatience()).verdict
    assert found is None or found.rule != "early_exit"
    assert verdict_on(receiving_from_any((1, 2))).kind == "desync", "none is left"


def test_who_takes_leave_of_a_group_may_do_so_alone() -> None:
    programs = [[Call("init"), Call("destroy")], [Call("init"), Call("exit")]]
    found = verdict_on(World({"0": ((0, 1), "default_pg")}, programs).run().scene())
    assert not found.proven


# --- when torch ends a wait


def limited(scene: Scene, limit_s: float, ranks: tuple[int, ...] | None = None) -> Scene:
    """The same scene, with groups whose time limit is known to some ranks."""

    def group(one: Group) -> Group:
        return msgspec.structs.replace(one, limit_s=limit_s)

    sights = [
        sight
        if ranks is not None and sight.rank not in ranks
        else msgspec.structs.replace(
            sight, trace=msgspec.structs.replace(sight.trace, groups=tuple(map(group, sight.trace.groups)))
        )
        for sight in scene.ranks
    ]
    return msgspec.structs.replace(scene, ranks=tuple(sights))


def test_a_wait_expires_by_the_limit_of_its_group() -> None:
    scene = scene_of("sleep")
    onset_s = verdict_on(scene).onset_s or 0.0
    assert verdict_on(scene).expires_s == pytest.approx(onset_s + 1800.0), "torch's own where it is not known"
    assert verdict_on(limited(scene, 77.0)).expires_s == pytest.approx(onset_s + 77.0)


def test_the_first_of_the_waiting_ranks_to_give_up_ends_the_job() -> None:
    scene = limited(limited(scene_of("sleep"), 600.0), 60.0, ranks=(3,))
    assert verdict_on(scene).expires_s == pytest.approx((verdict_on(scene).onset_s or 0.0) + 60.0)
    of_the_late_one = limited(limited(scene_of("sleep"), 600.0), 60.0, ranks=(1,))
    assert verdict_on(of_the_late_one).expires_s == pytest.approx((verdict_on(scene).onset_s or 0.0) + 600.0)


def came_at(scene: Scene, rank: int, at_s: float, now: str) -> Scene:
    """The same scene; one rank came later: it waits there, is done with the call, or is so far on that the call is forgotten."""
    sight = scene.ranks[rank]
    (first,) = [number for number, op in enumerate(sight.trace.ops) if op.state == "waiting"]
    ops = [
        msgspec.structs.replace(op, at_s=at_s, waiting_at_s=at_s if op.state == "waiting" else None)
        for op in sight.trace.ops[first:]
    ]
    if now != "waiting":
        ops[0] = msgspec.structs.replace(ops[0], state="done", done_at_s=at_s)
        ops[1] = msgspec.structs.replace(ops[1], state="waiting", waiting_at_s=at_s)
    trace = msgspec.structs.replace(sight.trace, ops=(*sight.trace.ops[:first], *ops[int(now == "forgotten") :]))
    sights = (*scene.ranks[:rank], msgspec.structs.replace(sight, trace=trace), *scene.ranks[rank + 1 :])
    return msgspec.structs.replace(scene, ranks=sights)


@pytest.mark.parametrize("now", ["waiting", "done", "forgotten"])
def test_who_came_last_began_the_time_anew(now: str) -> None:
    """gloo grants it for each message: ranks that come one after the other take longer than it, and succeed."""
    scene = limited(scene_of("sleep", waited_s=100.0), 60.0)
    late_s = scene.at_s - 40.0
    found = verdict_on(came_at(scene, 3, late_s, now))
    assert found.ranks == (1,)
    assert found.expires_s == pytest.approx(late_s + 60.0)


@pytest.mark.parametrize("newest", ["issued", "done"])
def test_in_a_backward_pass_the_time_begins_with_its_newest_collective_on_any_member(newest: str) -> None:
    scene = limited(scene_of("sleep"), 60.0)
    sights = []
    for sight in scene.ranks:
        ops = tuple(
            msgspec.structs.replace(op, op="ddp_backward") if op.state == "waiting" else op for op in sight.trace.ops
        )
        started = Op(group="0", op="all_reduce", seq=9, state=newest, at_s=scene.at_s - 1.0)  # type: ignore[arg-type]
        trace = msgspec.structs.replace(sight.trace, ops=ops)
        sights.append(msgspec.structs.replace(sight, trace=trace, recorded=(started,) if sight.rank != 1 else ()))
    found = verdict_on(msgspec.structs.replace(scene, ranks=tuple(sights)))
    assert found.expires_s == pytest.approx(scene.at_s + 59.0)


# --- who may end a wait by an end, an error or a call of its own


def differing(late: bool = False) -> Scene:
    """Ranks 0 and 1 make different calls as one; rank 2 is in it too, or late."""
    groups = {"0": ((0, 1, 2), "default_pg")}
    programs = [
        [Call("init"), *([Call("stuck")] if late and rank == 2 else []), Call("collective", op=op)]
        for rank, op in enumerate(("all_reduce", "broadcast", "all_reduce"))
    ]
    return World(groups, programs).run().scene()


def test_calls_that_differ_may_end_in_an_error_where_a_member_may_yet_leave() -> None:
    """What it has begun with its end ends theirs; or they are one call under two names, as `reduce_scatter` is with gloo."""
    assert verdict_on(differing()).proven
    assert not verdict_on(differing(late=True)).proven


def test_calls_that_differ_in_a_side_thread_do_not_keep_the_main_one() -> None:
    scene = differing()
    for rank in range(3):
        beside = tuple(
            msgspec.structs.replace(op, thread=1) if op.state == "waiting" else op for op in traced(scene, rank).ops
        )
        scene = with_trace(scene, rank, ops=beside)
    assert not verdict_on(scene).proven


WATCHDOG = Frame("give_up_after_a_while", "/home/me/train.py", 70)
WRITER = (Frame("_run", f"{PACKAGES}/tensorboard/summary/writer/event_file_writer.py", 244), *BOOT)


@pytest.mark.parametrize(("frames", "proven"), [((WATCHDOG,), False), (MAY_ACT["a library's"], False), (WRITER, True)])
def test_a_thread_may_abort_a_call_or_end_its_process(frames: tuple[Frame, ...], proven: bool) -> None:
    assert verdict_on(with_thread(differing(), 1, *frames)).proven is proven


@pytest.mark.parametrize(
    "doing", [{"state": "T"}, {"state": "R"}, {"starved": 0.9}, {"frozen_by": "/sys/x/cgroup.freeze"}]
)
def test_a_rank_that_has_not_run_may_have_an_error_to_come(doing: dict[str, Any]) -> None:
    """Its peer has ended, or failed: it will know when it is given a CPU."""
    for scene in (differing(), scene_of("exit 0"), circle()):
        found = settled(seen_as(scene, 0, **doing))
        assert found is None or not found.proven or found.rule == "state"


def test_a_peer_that_has_only_just_ended_is_not_known_to_all() -> None:
    scene = scene_of("exit 0", waited_s=20.0)
    assert verdict_on(scene).proven
    ended_now = msgspec.structs.replace(scene.ranks[1], ended_at_s=scene.at_s - 0.3)
    assert not verdict_on(msgspec.structs.replace(scene, ranks=(scene.ranks[0], ended_now, *scene.ranks[2:]))).proven


def test_of_a_call_that_is_waited_in_for_a_living_rank_too_one_that_ended_proves_nothing() -> None:
    """Of a broadcast its root alone is needed."""
    groups = {"0": ((0, 1, 2), "default_pg")}
    programs = [[Call("init"), Call("collective", op="broadcast", peer=2)], [Call("init"), Call("exit")],
                [Call("init"), Call("stuck")]]  # fmt: skip
    found = verdict_on(World(groups, programs).run().scene())
    assert (found.rule, found.proven) == ("early_exit", False)


def test_a_circle_ends_where_one_of_its_calls_may_end_in_an_error() -> None:
    """Rank 0 is in a call of all three, of which rank 2 may leave the group; then it sends what rank 1 waits for."""
    groups = {"0": ((0, 1, 2), "default_pg")}
    programs = [[Call("init"), Call("collective", op="all_reduce")], [Call("init"), Call("recv", peer=0)],
                [Call("init"), Call("stuck")]]  # fmt: skip
    found = settled(World(groups, programs).run().scene(waited_s=12.0))
    assert found is None or not found.proven
    programs[2] = [Call("init"), Call("collective", op="all_reduce")]
    found = settled(World(groups, programs).run().scene(waited_s=12.0))
    assert found is not None and found.proven


def test_members_alone_may_make_a_group() -> None:
    """By default `new_group` waits for nobody else, whatever is written about it, and what it waits for is in a store."""
    scene = circle()
    ops = tuple(
        msgspec.structs.replace(op, op="new_group", group="(world)", peer=-1, seq=2) if op.state == "waiting" else op
        for op in traced(scene, 0).ops
    )
    found = settled(with_trace(scene, 0, ops=ops))
    assert found is None or not found.proven


@pytest.mark.parametrize(("limit_s", "proven"), [(20.0, False), (120.0, False), (600.0, True)])
@pytest.mark.parametrize("fault", ["size", "exit 0"])
def test_whose_time_limit_is_short_may_catch_its_end(fault: str, limit_s: float, proven: bool) -> None:
    assert verdict_on(limited(scene_of(fault), limit_s)).proven is proven
    assert verdict_on(limited(circle(), limit_s)).proven is proven


def test_a_thread_in_c_that_python_knows_may_call_it() -> None:
    """It shows no frame until then. Autograd's own, which wait for the main thread, call nobody."""
    for name, proven in (("", False), ("pt_autograd_0", True)):
        scene = circle()
        beside = tuple((*sample, ThreadStack(name=name, frames=())) for sample in scene.ranks[0].processes[0].stacks)
        assert verdict_on(seen_as(scene, 0, stacks=beside)).proven is proven


@pytest.mark.parametrize("fault", ["size", "exit 0"])
def test_a_rank_that_is_not_recorded_or_seen_may_do_anything(fault: str) -> None:
    scene = scene_of(fault)
    assert verdict_on(scene).proven
    unrecorded = msgspec.structs.replace(scene.ranks[3], trace=None)
    assert not verdict_on(msgspec.structs.replace(scene, ranks=(*scene.ranks[:3], unrecorded))).proven
    assert not verdict_on(msgspec.structs.replace(scene, silent_nodes=("gpu-09",))).proven


def test_behind_a_wrapper_another_rank_may_be_stopped_too() -> None:
    scene = scene_of("stop")
    child = ProcessSight(pid=9, parent=102, is_rank=False, command="python", state="T", stopped_by=SIGSTOP)
    wrapped = msgspec.structs.replace(scene.ranks[2], processes=(*scene.ranks[2].processes, child))
    ranks = (*scene.ranks[:2], wrapped, *scene.ranks[3:])
    assert verdict_on(scene).proven
    assert not verdict_on(msgspec.structs.replace(scene, ranks=ranks)).proven


def test_looks_that_lie_far_apart_are_no_two_looks() -> None:
    """The launcher was stopped too, with the whole job."""
    first = scene_of("stop", waited_s=30.0)
    for later_s, proven in ((6.0, True), (40.0, False)):
        later = msgspec.structs.replace(first, at_s=first.at_s + later_s)
        found = look(later, RankPatience(), previous=first).verdict
        assert found is not None and found.proven is proven


# --- who is left when the others have ended


def last_rank(left: tuple[int, ...] = (0,), after_s: float = 6.0, **doing: Any) -> Scene:
    groups = {"0": ((0, 1, 2, 3), "default_pg")}
    programs = [[Call("init"), Call("stuck" if rank in left else "exit")] for rank in range(4)]
    scene = World(groups, programs).run().scene()
    at_s = max(sight.ended_at_s or 0.0 for sight in scene.ranks) + after_s
    scene = msgspec.structs.replace(scene, at_s=at_s)
    for rank in left:
        scene = seen_as(scene, rank, **doing)
    return scene


def test_a_rank_that_is_left_behind_is_named_with_its_place() -> None:
    found = look_at_leftovers(last_rank(), 5.0).verdict
    assert found is not None
    assert (found.kind, found.rule, found.ranks, found.proven, found.at_work) == (
        "hang",
        "leftover",
        (0,),
        False,
        False,
    )
    assert found.sentence == (
        "rank 0 (node gpu-00) still runs 6.0 s after the 3 others ended with exit code 0; it is asleep in data.py:88 get"
    ).replace(" (node gpu-00)", "")


def test_a_rank_that_is_left_behind_may_be_at_work() -> None:
    found = look_at_leftovers(last_rank(cpu=0.99), 5.0).verdict
    assert found is not None
    assert found.at_work
    assert found.sentence.endswith("; it uses 99 % of a core in data.py:88 get")


def test_a_crash_when_the_program_had_ended_is_an_end_there() -> None:
    found = look_at_leftovers(crashed_at_exit(last_rank(), 3), 5.0).verdict
    assert found is not None
    assert found.sentence.startswith(
        "rank 0 still runs 5.0 s after the 3 others had come to the end of their program; it is asleep"
    )


def test_ranks_that_are_just_ending_are_not_left_behind() -> None:
    assert look_at_leftovers(last_rank(after_s=3.0), 5.0).verdict is None


def test_while_most_go_on_nobody_is_left_behind() -> None:
    assert look_at_leftovers(last_rank(left=(0, 1, 2)), 5.0).verdict is None
    found = look_at_leftovers(last_rank(left=(0, 2)), 5.0).verdict
    assert found is not None
    assert found.sentence.startswith(
        "ranks 0 and 2 still run 6.0 s after the 2 others ended with exit code 0; rank 0 is asleep"
    )


def test_of_an_attempt_in_which_a_rank_failed_nobody_is_left_behind() -> None:
    assert look_at_leftovers(ended(last_rank(), 3, 1, 0.0), 5.0).verdict is None


def test_a_rank_that_cannot_be_seen_is_named_all_the_same() -> None:
    scene = last_rank()
    unseen = msgspec.structs.replace(scene.ranks[0], processes=())
    found = look_at_leftovers(msgspec.structs.replace(scene, ranks=(unseen, *scene.ranks[1:])), 5.0).verdict
    assert found is not None
    assert found.ranks == (0,)


def test_a_child_that_works_keeps_a_rank_at_work() -> None:
    scene = last_rank()
    child = ProcessSight(pid=9, parent=100, is_rank=False, command="aws s3 cp", state="S", io_bytes=5_000_000)
    busy = msgspec.structs.replace(scene.ranks[0], processes=(*scene.ranks[0].processes, child))
    found = look_at_leftovers(msgspec.structs.replace(scene, ranks=(busy, *scene.ranks[1:])), 5.0).verdict
    assert found is not None
    assert found.at_work


def test_a_circle_of_ranks_is_proven_by_two_looks_that_agree() -> None:
    scene = circle()
    first = look(scene, RankPatience())
    assert first.verdict is None and first.again_s is not None
    soon, later = (msgspec.structs.replace(scene, at_s=scene.at_s + after_s) for after_s in (1.0, 2.5))
    near = look(soon, RankPatience(), previous=scene).verdict
    apart = look(later, RankPatience(), previous=scene).verdict
    assert near is not None and apart is not None
    assert (near.proven, apart.proven) == (False, True)


def test_a_circle_that_was_open_at_the_look_before_is_said_and_not_proven() -> None:
    scene = circle()
    closed = settled(scene)
    assert closed is not None and closed.proven
    open_then = with_thread(scene, 0, Frame(function="receive", file="/work/train.py", line=7))
    later = msgspec.structs.replace(scene, at_s=scene.at_s + 2.5)
    found = look(later, RankPatience(), previous=open_then).verdict
    assert found is not None and not found.proven


# --- native threads, which no stack of Python shows


@pytest.mark.parametrize("acting", [(4711,), None])
@pytest.mark.parametrize(
    "scene", [circle(), scene_of("size"), scene_of("operation")], ids=["circle", "size", "operation"]
)
def test_beside_a_native_thread_that_may_call_python_nothing_is_proven(
    scene: Scene, acting: tuple[int, ...] | None
) -> None:
    assert verdict_on(scene).proven
    for rank in range(scene.world_size):
        assert not verdict_on(seen_as(scene, rank, acting=acting)).proven


# --- calls of groups that are not listed


def unlisted(scene: Scene, *names: str) -> Scene:
    """The same scene, where no record had room for these groups."""
    ranks = []
    for sight in scene.ranks:
        trace = sight.trace
        assert trace is not None
        ops = tuple(msgspec.structs.replace(op, group="" if op.group in names else op.group) for op in trace.ops)
        groups = tuple(group for group in trace.groups if group.name not in names)
        trace = msgspec.structs.replace(trace, ops=ops, groups=groups)
        ranks.append(msgspec.structs.replace(sight, trace=trace))
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


@pytest.mark.parametrize("fault", ["sleep", "size", "operation"])
def test_calls_of_groups_that_are_not_listed_are_not_taken_for_those_of_one_group(fault: str) -> None:
    """Ranks of several groups would seem to have called different things in the same one."""
    scene = scene_of(fault, layout="TP2xDP2", waited_s=20.0)
    assert settled(unlisted(scene, "1", "2", "3", "4")) is None
    some = settled(unlisted(scene, "1"))
    assert some is None or (some.kind not in ("mismatch", "desync") and not some.proven)
