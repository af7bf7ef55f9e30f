"""ByteRobust's example (5.1): TP2/PP4/DP4 on 16 machines, machines 12 to 15 are one pipeline."""

from __future__ import annotations

from tracer.verdict.scenes import Call, World, seen_as

from robust_run.tracer.types import Frame, Scene, ThreadStack
from robust_run.tracer.verdict import RankPatience, look

PIPELINE = ("gpu-12", "gpu-13", "gpu-14", "gpu-15")
WAITS = Frame("wait", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000)


def groups() -> dict[str, tuple[tuple[int, ...], str]]:
    """Machine 4 d + s holds the two tensor parallel ranks of pipeline stage s in replica d."""
    found: dict[str, tuple[tuple[int, ...], str]] = {"0": (tuple(range(32)), "default_pg")}
    for machine in range(16):
        found[f"tp{machine}"] = ((2 * machine, 2 * machine + 1), "TP")
    for tensor in range(2):
        for other in range(4):
            found[f"pp{other}.{tensor}"] = (tuple(8 * other + 2 * stage + tensor for stage in range(4)), "PP")
            found[f"dp{other}.{tensor}"] = (tuple(8 * replica + 2 * other + tensor for replica in range(4)), "DP")
    return found


def stalled() -> Scene:
    """All have come to the gradients' all_reduce of the world, and nothing moves."""
    program = [Call("compute"), Call("collective", "0", "all_reduce", line=40)]
    return World(groups(), [program] * 32, frozen={24}, per_node=2).run().scene(waited_s=700.0)


def other_stacks(scene: Scene, ranks: range) -> Scene:
    """These ranks wait somewhere else in the program than the others."""
    stack = (ThreadStack(is_main=True, frames=(WAITS, Frame("recv_forward", "/home/me/pipeline.py", 7))),)
    for rank in ranks:
        scene = seen_as(scene, rank, stacks=(stack, stack))
    return scene


def test_machines_whose_stacks_differ_are_named_with_the_pipeline_that_they_share() -> None:
    found = look(other_stacks(stalled(), range(24, 32)), RankPatience()).verdict
    assert found is not None and found.rule == "all_arrived"
    assert found.nodes == PIPELINE and found.over_evicted == tuple(range(24, 32))


def test_one_odd_stage_has_its_whole_pipeline_named_only_if_nothing_smaller_has_it() -> None:
    found = look(other_stacks(stalled(), range(28, 30)), RankPatience()).verdict
    assert found is not None and found.nodes == ("gpu-14",), "both of its ranks are one tensor group"


def test_where_all_wait_alike_nobody_is_singled_out() -> None:
    found = look(stalled(), RankPatience()).verdict
    assert found is not None and len(found.nodes) == 16
