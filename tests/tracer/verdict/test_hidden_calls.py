"""Collectives that torch starts itself, and receives from anybody: less is known, and less is claimed."""

from __future__ import annotations

import msgspec
import pytest
from tracer.verdict.scenes import Call, World, seen_as

from robust_run.tracer.types import BACKWARD, Frame, Op, Scene, ThreadStack
from robust_run.tracer.verdict import RankPatience, look

GROUPS = {"0": ((0, 1, 2, 3), "default_pg")}
TORCH = "/v/lib/python3.11/site-packages/torch"


def recorded(count: int, unfinished: int = 1) -> tuple[Op, ...]:
    return tuple(
        Op(group="0", op="all_reduce", seq=seq, state="done" if seq <= count - unfinished else "issued", at_s=seq / 100)
        for seq in range(1, count + 1)
    )


def with_records(scene: Scene, counts: dict[int, int]) -> Scene:
    ranks = [msgspec.structs.replace(sight, recorded=recorded(counts[sight.rank])) for sight in scene.ranks]
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


def backward_of_all() -> Scene:
    programs = [[Call("collective", op=BACKWARD, numel=-1) for _ in range(3)] for _ in range(4)]
    return World(GROUPS, programs, frozen={0}).run().scene(waited_s=6.0)


def test_in_the_backward_pass_the_rank_that_has_begun_fewer_collectives_is_behind() -> None:
    scene = with_records(backward_of_all(), {0: 9, 1: 9, 2: 7, 3: 9})
    stack = ((ThreadStack(is_main=True, frames=(Frame("backward", "/home/me/layers.py", 12),)),),)
    found = look(seen_as(scene, 2, stacks=stack), RankPatience()).verdict
    assert found is not None
    assert (found.kind, found.ranks) == ("hang", (2,))
    assert "rank 2 did not come through the backward pass #1 of the world (3 ranks have been waiting" in found.sentence


def test_a_rank_that_has_not_begun_the_backward_pass_is_missing_there() -> None:
    programs = [[Call("collective", op=BACKWARD, numel=-1), *([Call("stuck")] if rank == 3 else []),
                 Call("collective", op=BACKWARD, numel=-1)] for rank in range(4)]  # fmt: skip
    found = look(World(GROUPS, programs).run().scene(), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks) == ("hang", (3,))
    assert "the backward pass #2" in found.sentence


def test_if_all_have_begun_as_many_it_is_the_communication() -> None:
    scene = with_records(backward_of_all(), dict.fromkeys(range(4), 9))
    late = look(msgspec.structs.replace(scene, at_s=scene.at_s + 5), RankPatience()).verdict
    assert look(scene, RankPatience()).verdict is None
    assert late is not None and late.kind == "comm_stall"


def unlogged(counts: dict[int, int] | None) -> Scene:
    """Ranks 0, 2 and 3 wait for rank 1, which waits in something that its ring does not know."""
    programs = [[*([Call("stuck")] if rank == 1 else []), Call("collective", op="all_reduce")] for rank in range(4)]
    programs[3].insert(0, Call("stuck"))
    scene = World(GROUPS, programs).run().scene(waited_s=11.0)
    frames = (Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 9), Frame("f", "/home/me/train.py", 1))
    stack = ((ThreadStack(is_main=True, frames=frames),),)
    ranks = list(scene.ranks)
    seen = msgspec.structs.replace(ranks[1].processes[0], stacks=stack)
    ranks[1] = msgspec.structs.replace(ranks[1], processes=(seen,))
    scene = msgspec.structs.replace(scene, ranks=tuple(ranks))
    return with_records(scene, counts) if counts else scene


def test_what_torch_has_recorded_tells_for_whom_an_unlogged_call_waits() -> None:
    found = look(unlogged({0: 5, 1: 5, 2: 5, 3: 4}), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks) == ("hang", (3,))


def test_a_rank_in_an_unlogged_call_is_not_blamed_alone() -> None:
    found = look(unlogged(None), RankPatience()).verdict
    assert found is not None and found.kind == "hang"
    assert 3 in found.ranks


def test_only_one_in_an_unlogged_call_is_named_with_low_confidence() -> None:
    scene = unlogged(None)
    without = msgspec.structs.replace(scene, ranks=scene.ranks[:3], world_size=3)
    groups = tuple(msgspec.structs.replace(scene.ranks[0].trace.groups[0], ranks=(0, 1, 2)) for _ in range(1))
    ranks = tuple(
        msgspec.structs.replace(sight, trace=msgspec.structs.replace(sight.trace, groups=groups))
        for sight in without.ranks
    )
    found = look(msgspec.structs.replace(without, ranks=ranks), RankPatience()).verdict
    assert found is not None and (found.rule, found.confidence, found.ranks) == ("unlogged_wait", "low", (1,))


def test_who_receives_from_anybody_proves_little() -> None:
    programs = [[Call("recv", op="recv_any", peer=-1)], *([Call("stuck")] for _ in range(3))]
    world = World(GROUPS, programs)
    world.ranks[0].ops.append(Op(group="0", op="recv_any", seq=1, state="waiting", at_s=0.0, waiting_at_s=0.0))
    world.ranks[0].blocked_op, world.ranks[0].over = 0, True
    scene = world.run().scene(waited_s=60.0)
    assert look(scene, RankPatience()).verdict is None
    found = look(msgspec.structs.replace(scene, at_s=700.0), RankPatience()).verdict
    assert found is not None and found.confidence == "low"


def test_a_world_of_thousands_is_judged() -> None:
    size = 1024
    ranks = tuple(range(size))
    groups = {"0": (ranks, "default_pg")}
    for first in range(0, size, 8):
        groups[f"tp{first}"] = (ranks[first : first + 8], f"tp_{first // 8}")
    programs = []
    for rank in ranks:
        step = [Call("collective", f"tp{rank // 8 * 8}", "all_reduce"), Call("collective", "0", "all_reduce", 1)]
        programs.append([*step, *step, *([Call("stuck")] if rank == 777 else []), *step])
    found = look(World(groups, programs, per_node=8).run().scene(), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks, found.nodes) == ("hang", (777,), ("gpu-97",))
    assert f"({size - 1} ranks have been waiting for" in found.sentence


def numbered_apart(scene: Scene) -> Scene:
    """The same scene as recorders write it: backward passes are numbered by themselves."""
    ranks = []
    for sight in scene.ranks:
        assert sight.trace is not None
        counts = {True: 0, False: 0}
        ops = []
        for op in sight.trace.ops:
            counts[op.op == BACKWARD] += 1
            ops.append(msgspec.structs.replace(op, seq=counts[op.op == BACKWARD]))
        ranks.append(msgspec.structs.replace(sight, trace=msgspec.structs.replace(sight.trace, ops=tuple(ops))))
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


@pytest.mark.parametrize("culprit", [0, 1, 3])
@pytest.mark.parametrize("passes", [1, 2, 5, 30])
@pytest.mark.parametrize("last", ["barrier", "all_reduce", BACKWARD])
def test_the_number_of_a_backward_pass_says_nothing_about_other_calls(culprit: int, passes: int, last: str) -> None:
    def program(rank: int) -> list[Call]:
        calls = [Call("collective", op=BACKWARD, numel=-1) for _ in range(passes)]
        calls += [Call("collective", op="all_reduce") for _ in range(2)]
        calls += [Call("stuck")] if rank == culprit else []
        return [*calls, Call("collective", op=last, numel=-1 if last == BACKWARD else 1)]

    scene = numbered_apart(World(GROUPS, [program(rank) for rank in range(4)]).run().scene())
    found = look(scene, RankPatience()).verdict
    assert found is not None
    assert (found.kind, found.ranks, found.rule) == ("hang", (culprit,), "never_joined")
    works = stack_of("/v/lib/python3.11/site-packages/torch/serialization.py", "save")
    saves = seen_as(scene, culprit, stacks=((works,),) * 3)
    assert look(msgspec.structs.replace(saves, at_s=saves.at_s + 60), RankPatience()).verdict is None


def stack_of(file: str, function: str) -> ThreadStack:
    return ThreadStack(is_main=True, frames=(Frame(function, file, 850), Frame("<module>", "/home/me/train.py", 9)))


def waiting_for_gpus(backends: str, *, on_gpu: bool | None = True, says: str = ".item()") -> Scene:
    """Ranks 0, 1 and 2 wait for their GPUs, which are in the fifth collective; rank 3 has begun only four, and loads data."""
    programs = [[Call("stuck")] for _ in range(4)]
    scene = World(GROUPS, programs).run().scene(waited_s=11.0)
    frames = (Frame("step", "/home/me/train.py", 52), Frame("<module>", "/home/me/train.py", 90))
    ranks = []
    for seen, count in zip(scene.ranks, (5, 5, 5, 4), strict=True):
        assert seen.trace is not None
        groups = tuple(msgspec.structs.replace(group, backends=backends) for group in seen.trace.groups)
        calls = list(recorded(count, unfinished=int(count == 5)))
        calls[-1] = msgspec.structs.replace(calls[-1], on_gpu=on_gpu)
        known = seen
        if count == 5:
            stacks = ((ThreadStack(is_main=True, frames=frames),),) * 2
            one = msgspec.structs.replace(seen.processes[0], stacks=stacks, gpu_wait=says, state="R", cpu=1.0)
            known = msgspec.structs.replace(seen, processes=(one,))
        trace = msgspec.structs.replace(seen.trace, groups=groups)
        ranks.append(msgspec.structs.replace(known, trace=trace, recorded=tuple(calls)))
    return msgspec.structs.replace(scene, ranks=tuple(ranks))


def test_who_waits_for_its_gpu_waits_for_who_did_not_come_to_the_collective_that_is_on_it() -> None:
    found = look(waiting_for_gpus("cpu:gloo,cuda:nccl"), RankPatience()).verdict
    assert found is not None and (found.kind, found.ranks) == ("hang", (3,))
    assert "all_reduce #5" in found.sentence and "(3 ranks have been waiting" in found.sentence


@pytest.mark.parametrize(
    ("why", "scene"),
    [
        ("its GPU has not come to it", waiting_for_gpus("cpu:gloo,cuda:nccl", on_gpu=False)),
        ("gloo has no GPU", waiting_for_gpus("cpu:gloo")),
        ("it computes", waiting_for_gpus("cpu:gloo,cuda:nccl", says="")),
    ],
)
def test_who_waits_for_something_else_waits_for_nobody(why: str, scene: Scene) -> None:
    found = look(scene, RankPatience()).verdict
    assert found is None or (found.rule, found.waits) == ("behind", ()), why  # the recorders alone say who is behind
    assert found is None or not found.proven, why
