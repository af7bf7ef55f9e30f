"""A rank that a cgroup keeps frozen is named with it and with what thaws it, and never taken for a fault."""

from __future__ import annotations

import msgspec

from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.types import Group, Op, ProcessSight, RankSight, RankTrace, Scene
from robust_run.tracer.verdict import RankPatience, look
from robust_run.tracer.verdict.frozen import thaw_command, thawing

FILE = "/sys/fs/cgroup/job/rank 1/cgroup.freeze"
WORLD = Group(name="0", desc="default_pg", ranks=(0, 1, 2))


def sight(rank: int, process: ProcessSight, waits: bool = True) -> RankSight:
    ops = (Op(group="0", op="all_reduce", seq=4, state="waiting", at_s=90.0, waiting_at_s=90.0),) if waits else ()
    trace = RankTrace(
        rank=rank, world_size=3, pid=10 + rank, steps=1, last_at_s=90.0, blocked_s=0.0, ops=ops, groups=(WORLD,)
    )
    return RankSight(rank=rank, node="a", trace=trace, processes=(process,))


def process(frozen_by: str = "", state: str = "S", stopped_by: int = 0) -> ProcessSight:
    return ProcessSight(
        pid=11, parent=1, is_rank=True, command="python", state=state, frozen_by=frozen_by, stopped_by=stopped_by
    )


def scene(*one_and_two: ProcessSight) -> Scene:
    seen = [sight(rank, each, waits=False) for rank, each in enumerate(one_and_two, 1)]
    rest = [sight(rank, process()) for rank in range(len(seen) + 1, 3)]
    return Scene(at_s=100.0, attempt=0, world_size=3, ranks=(sight(0, process()), *seen, *rest))


def test_a_frozen_rank_is_stopped_by_its_cgroup_and_nothing_is_proven() -> None:
    for state in "SDR":
        found = look(scene(process(FILE, state)), RankPatience()).verdict
        assert found is not None
        assert (found.kind, found.ranks, found.rule, found.proven, found.at_work) == (
            "stopped",
            (1,),
            "state",
            False,
            False,
        )
        assert (
            "rank 1 is frozen by the cgroup /sys/fs/cgroup/job/rank 1; 2 ranks have been waiting for 10.0 s"
            in found.sentence
        )
        assert f"frozen on a; to thaw it, type there: echo 0 > '{FILE}'" in found.evidence
        assert any("docker pause" in line for line in found.evidence)


def test_one_that_was_stopped_beside_a_frozen_one_proves_nothing() -> None:
    frozen = look(scene(process(FILE, "T", 19)), RankPatience()).verdict
    assert frozen is not None and not frozen.proven
    both = look(scene(process(state="T", stopped_by=19), process(FILE)), RankPatience()).verdict
    assert both is not None and not both.proven
    assert "ranks 1 and 2 are stopped (SIGSTOP) or frozen by a cgroup" in both.sentence


def test_who_is_not_frozen_needs_no_thawing() -> None:
    assert thawing([sight(0, process())]) == ()
    assert (
        thaw_command("/sys/fs/cgroup/freezer/a/freezer.state") == "echo THAWED > /sys/fs/cgroup/freezer/a/freezer.state"
    )
    assert activity_of(sight(1, process(FILE, "D"))).kind == "idle"


def test_sights_of_other_versions_are_understood() -> None:
    old = {key: value for key, value in msgspec.to_builtins(sight(1, process(FILE))).items() if key != "hidden"}
    old["processes"] = [{key: value for key, value in old["processes"][0].items() if key != "frozen_by"}]
    assert msgspec.convert(old, RankSight).processes[0].frozen_by == ""
    newer = {**old, "another": 1}
    assert msgspec.convert(newer, RankSight).hidden == ""
