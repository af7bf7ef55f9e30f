"""What people read: one sentence that says who, what, where and since when; and who waits for whom."""

from __future__ import annotations

import msgspec
from tracer.verdict.looking import settled
from tracer.verdict.scenes import FAULTS, LAYOUTS, Call, World, faulty

from robust_run.tracer.types import Group, RankSight, RankTrace, Scene
from robust_run.tracer.verdict import RankPatience, describe_waits, look, parallel_groups, waits
from robust_run.tracer.words import one_line, ranks_words, span


def sentence(layout: str, fault: str, rank: int, at: int) -> str:
    found = settled(faulty(LAYOUTS[layout], FAULTS[fault], rank, at).scene(waited_s=6.1))
    assert found is not None
    return found.sentence


def test_a_hang() -> None:
    assert sentence("DP8", "sleep", 5, 1).startswith(
        "rank 5 (node gpu-01) never joined all_reduce #21 of the world (7 ranks have been waiting for 6."
    )
    assert sentence("DP8", "sleep", 5, 1).endswith("; it is in data.py:88 get")


def test_a_hang_in_a_described_group() -> None:
    assert "never joined all_reduce #16 of group tp_2 (" in sentence("TP2xDP2xPP2", "sleep", 5, 2)


def test_a_message_that_never_comes() -> None:
    assert "rank 1 (node gpu-00) never sent to rank 5, which waits in recv #6" in sentence("TP2xDP2xPP2", "sleep", 1, 3)


def test_a_stopped_rank() -> None:
    assert "rank 2 is stopped (SIGSTOP); 3 ranks have been waiting for 11." in sentence("DP4", "stop", 2, 1)


def test_a_mismatch() -> None:
    assert sentence("TP2xDP2", "size", 3, 2) == (
        "rank 3 called all_reduce of 1101 float32 as #17 of group TP (ranks 2-3) (at train.py:21 step), "
        "where 1 other called all_reduce of 1024 float32 (at train.py:21 step)"
    )


def test_left_out_and_extra_calls() -> None:
    assert "rank 3 left out a call before #21 of the world" in sentence("DP4", "skipped", 3, 1)
    assert "rank 3 made one call too many before #22 of the world" in sentence("DP4", "extra", 3, 1)


def test_orders_that_differ() -> None:
    assert "rank 2 called all_reduce #6 of group DP (ranks 0,2) without all_reduce of group TP (ranks 2-3)" in sentence(
        "TP2xDP2", "skipped", 2, 3
    )
    assert "rank 7 (node gpu-01) called recv from rank 3 once too often, before" in sentence(
        "TP2xDP2xPP2", "extra recv", 7, 1
    )
    assert "rank 7 (node gpu-01) called recv from rank 2 instead of recv from rank 3" in sentence(
        "TP2xDP2xPP2", "wrong peer", 7, 1
    )


def test_the_verdict_carries_the_stack_of_the_culprit_and_what_others_wait_in() -> None:
    found = look(faulty(LAYOUTS["DP4"], FAULTS["sleep"], 1, 1).scene(), RankPatience()).verdict
    assert found is not None
    assert any("/home/me/data.py:88 get" in line for line in found.evidence)
    assert any("ranks 0,2-3 have been waiting for" in line for line in found.evidence)
    assert {wait.waiter for wait in found.waits} == {0, 2, 3}
    assert {wait.awaited for wait in found.waits} == {(1,)}
    assert found.nodes == ("gpu-00",) and found.group == "the world"


def test_who_waits_for_whom() -> None:
    world = faulty(LAYOUTS["TP2xDP2"], FAULTS["sleep"], 2, 1).scene()
    edges = {(wait.waiter, wait.awaited) for wait in waits(world)}
    assert (3, (2,)) in edges and (0, (2,)) in edges
    lines = describe_waits(world)
    assert any(
        line.startswith("rank 3 has been waiting for 6.")
        and " in all_reduce #16 of group TP (ranks 2-3) for rank 2" in line
        for line in lines
    )
    assert len(describe_waits(world, limit=1)) == 1


def test_groups_have_names_that_people_know() -> None:
    labels = {
        group.name: group.label for group in parallel_groups(faulty(LAYOUTS["TP2xDP2"], FAULTS["sleep"], 2, 1).scene())
    }
    assert labels["0"] == "the world"
    assert labels["3"] == "group DP (ranks 0,2)"
    bare = Group(name="9", desc="undefined", ranks=(0, 4))
    trace = RankTrace(rank=0, world_size=8, pid=1, steps=0, last_at_s=0.0, blocked_s=0.0, ops=(), groups=(bare,))
    scene = Scene(at_s=0.0, attempt=0, world_size=8, ranks=(RankSight(rank=0, node="a", trace=trace),))
    assert [group.label for group in parallel_groups(scene)] == ["group 9 (ranks 0,4)"]


def test_ranks_in_words() -> None:
    assert (ranks_words((3,)), ranks_words((5, 2)), ranks_words((0, 1, 2, 3))) == (
        "rank 3",
        "ranks 2 and 5",
        "4 ranks (0-3)",
    )
    assert span(range(0, 40, 2)) == "0,2,4,6,..."
    assert one_line("a\nb " + "x" * 300)[:5] == "a b x" and len(one_line("x" * 300)) == 250


def test_nothing_at_all_is_no_suspicion() -> None:
    scene = Scene(at_s=1.0, attempt=0, world_size=4, ranks=())
    assert look(scene, RankPatience()).verdict is None
    assert waits(scene) == () and describe_waits(scene) == []


def test_evidence_that_contradicts_itself_breaks_nothing() -> None:
    scene = (
        World({"0": ((0, 1), "x")}, [[Call("send", peer=1)], [Call("recv", peer=0), Call("recv", peer=7)]])
        .run()
        .scene()
    )
    sight = scene.ranks[1]
    strange = msgspec.structs.replace(sight.trace.ops[0], group="no such group", seq=-5, peer=10**9, state="waiting")
    trace = msgspec.structs.replace(sight.trace, groups=(), ops=(strange, *sight.trace.ops))
    broken = msgspec.structs.replace(scene, ranks=(scene.ranks[0], msgspec.structs.replace(sight, trace=trace)))
    for waited_s in (0.0, 6.0, 500.0):
        found = look(msgspec.structs.replace(broken, at_s=waited_s), RankPatience())
        assert found.verdict is None or found.verdict.sentence


def test_ranks_that_made_different_calls_at_one_number_wait_for_each_other() -> None:
    for fault, said in (("operation", "all_to_all #"), ("size", "all_reduce of 4173 float32 #21")):
        scene = faulty(LAYOUTS["DP4"], FAULTS[fault], 3, 1).scene(waited_s=6.1)
        found = {wait.waiter: wait for wait in waits(scene)}
        assert found[3].what.startswith(said), found[3]
        assert found[3].awaited == (0, 1, 2)
        assert {found[rank].what for rank in range(3)} != {found[3].what}
        assert found[0].awaited == (3,)
        verdict = look(scene, RankPatience()).verdict
        assert verdict is not None
        assert not any("all have come" in line or "ranks 0-3 wait" in line for line in verdict.evidence)
        assert any("ranks 0-2 have been waiting for" in line for line in verdict.evidence)
