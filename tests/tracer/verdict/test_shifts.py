"""A rank whose calls no longer line up: "left out" and "too many" are said where that is known, else both calls and places."""

from __future__ import annotations

import pytest
from tracer.verdict.looking import settled
from tracer.verdict.scenes import Call, World
from tracer.verdict.test_hidden_calls import numbered_apart

from robust_run.tracer.types import BACKWARD, Scene, TraceVerdict


def call(name: str, line: int, numel: int = 1000, **more: object) -> Call:
    return Call("collective", op=name, numel=numel, line=line, **more)  # type: ignore[arg-type]


A, B, C = call("all_reduce", 7), call("all_reduce", 9, 1), call("broadcast", 11, 50, peer=0)
BARRIER = call("barrier", 30, 0)
PASS = call(BACKWARD, 8, -1)
#: What DistributedDataParallel does as it is made: nobody knows its sizes.
WRAPPED = [call("all_gather", 5, -1, dtype=""), call("broadcast", 5, -1, dtype="")]


def scene_of(usual: list[Call], odd: list[Call], ranks: int = 3, rank: int = 1) -> Scene:
    world = World({"0": (tuple(range(ranks)), "default_pg")}, [odd if n == rank else usual for n in range(ranks)])
    assert world.run().stuck
    return world.scene()


def told(scene: Scene) -> TraceVerdict:
    found = settled(scene)
    assert found is not None
    assert found.ranks == (1,) and len(found.sentence) <= 250, found.sentence
    return found


def neutral(usual: list[Call], odd: list[Call], kind: str) -> str:
    """What is said where it is open what happened: no word of too many calls or too few."""
    found = told(scene_of(usual, odd))
    assert (found.kind, found.rule) == (kind, "signature"), found.sentence
    assert "too many" not in found.sentence and "left out" not in found.sentence
    return found.sentence


# -- not known: both calls, both places


def test_a_barrier_that_one_rank_of_a_loop_leaves_out() -> None:
    said = neutral([*[A] * 21, BARRIER, A], [A] * 22, "desync")
    assert said == (
        "rank 1 called all_reduce of 1000 float32 as #22 of the world (at train.py:7 step), "
        "where 2 others called barrier (at train.py:30 step)"
    )


def test_a_barrier_that_was_there_before_and_is_left_out_the_second_time() -> None:
    rounds = [*[A] * 5, BARRIER]
    neutral([*rounds, *rounds, A], [*rounds, *[A] * 6], "desync")


def test_two_calls_left_out_at_once_in_a_loop() -> None:
    rounds = [*[A] * 5, BARRIER, C]
    neutral([*rounds, *rounds, *rounds], [*rounds, *rounds, *[A] * 6], "desync")


@pytest.mark.parametrize("change", ["left out", "too many"])
def test_of_two_calls_in_turn_one_left_out_looks_like_the_other_made_twice(change: str) -> None:
    steps = [A, C] * 6
    said = neutral(steps, [*[A, C] * 4, A, *([A] if change == "too many" else [A, C])], "desync")
    assert "all_reduce of 1000 float32" in said and "train.py:7" in said and "train.py:11" in said


def test_all_but_the_last_call_of_a_step_left_out_looks_like_that_call_made_twice() -> None:
    step = [A, C, B]
    neutral([*step * 6, A], [*step * 6, B], "desync")


def test_a_call_that_comes_one_step_early() -> None:
    rounds = [A, A, A, A, C]
    neutral(rounds * 4, [*rounds * 3, A, A, A, C], "desync")


def test_a_line_that_the_rank_never_called_from_is_no_call_that_comes_next() -> None:
    steps = [A, B, C]
    neutral([*steps * 5, *steps], [*steps * 5, call("all_reduce", 20, 1)], "desync")


def test_another_operation_after_one_of_the_same_name_that_was_never_seen_whole() -> None:
    usual, odd = call("all_reduce", 14, 16), call("broadcast", 13, 16, peer=0)
    said = neutral([*WRAPPED, usual], [*WRAPPED, odd], "mismatch")
    assert "train.py:13" in said and "train.py:14" in said


def test_another_root_in_the_same_line() -> None:
    said = neutral(
        [*WRAPPED, call("broadcast", 11, 4, peer=0)], [*WRAPPED, call("broadcast", 11, 4, peer=1)], "mismatch"
    )
    assert said.count("train.py:11") == 2 and "from root 1" in said and "from root 0" in said


def test_what_was_open_is_no_other_confidence() -> None:
    assert told(scene_of([*[A] * 21, BARRIER, A], [A] * 22)).confidence == "high"


# -- known: what was said of these stays


def test_a_call_of_a_step_left_out_where_the_next_never_follows_otherwise() -> None:
    steps = [A, B, C]
    found = told(scene_of(steps * 6, [*steps * 4, A, C, *steps]))
    assert found.rule == "skipped_op"
    assert found.sentence.startswith("rank 1 left out a call before #14 of the world: broadcast of 50 float32")


def test_calls_that_line_up_again_one_place_later_or_earlier() -> None:
    buckets = [call("all_reduce", 31, numel, asynchronous=True) for numel in (4096, 2048, 512)]
    step = [*buckets, Call("wait"), B]
    skipped = told(scene_of(step * 6, [*step * 5, *buckets[1:], Call("wait"), B]))
    extra = told(scene_of(step * 6, [*step * 5, buckets[0], *step]))
    assert (skipped.rule, extra.rule) == ("skipped_op", "extra_op")
    assert "rank 1 left out a call before #21" in skipped.sentence
    assert "rank 1 made one call too many before #22" in extra.sentence


def test_calls_of_two_in_turn_that_line_up_again_are_told_apart_by_a_line_that_is_new() -> None:
    one, two = (call("all_reduce", line, numel, asynchronous=True) for line, numel in ((7, 4096), (9, 512)))
    steps, end = [one, two] * 6, [Call("wait"), C]
    same = told(scene_of([*steps, *end], [*steps[:8], two, *steps[8:], *end]))
    other = told(
        scene_of([*steps, *end], [*steps[:8], call("all_reduce", 20, 512, asynchronous=True), *steps[8:], *end])
    )
    assert (same.kind, same.rule, other.rule) == ("desync", "signature", "extra_op")


# -- the same beside backward passes, whose numbers are their own: ranks wait in a circle


def circle(usual: list[Call], odd: list[Call], ranks: int = 3) -> TraceVerdict:
    found = told(numbered_apart(scene_of(usual, odd, ranks)))
    assert found.kind == "desync" and "too often" not in found.sentence
    return found


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("passes", [1, 2, 21, 40, 60])
def test_a_barrier_left_out_beside_backward_passes(passes: int, ranks: int) -> None:
    found = circle([*WRAPPED, *[PASS] * passes, BARRIER, PASS], [*WRAPPED, *[PASS] * passes, PASS], ranks)
    assert found.sentence.split(";")[0].endswith(
        f"did not come to barrier #3 of the world at train.py:30 step, where {ranks - 1} others are"
    ), found.sentence
    assert f"it is in the backward pass #{passes + 1} of the world at train.py:8 step" in found.sentence
    assert found.confidence != "high"
    assert found.over_evicted == ()


@pytest.mark.parametrize("passes", [2, 21, 40])
def test_a_barrier_that_one_rank_alone_comes_to_is_the_odd_call(passes: int) -> None:
    found = circle([*WRAPPED, *[PASS] * passes, PASS], [*WRAPPED, *[PASS] * passes, BARRIER])
    assert found.sentence.startswith(
        "rank 1 called barrier #3 of the world where the backward pass of the world comes otherwise at train.py:30 step; "
    ), found.sentence


@pytest.mark.parametrize("passes", [3, 10])
def test_a_barrier_after_every_few_backward_passes_left_out_once(passes: int) -> None:
    rounds = [*[PASS] * passes, BARRIER]
    found = circle([*rounds * 5, PASS], [*rounds * 4, *[PASS] * (passes + 1)])
    assert found.sentence.startswith(
        "rank 1 did not come to barrier #5 of the world at train.py:30 step, where 2 others are; "
        f"it is in the backward pass #{passes * 5 + 1} of the world at train.py:8 step; "
    ), found.sentence


def test_several_ranks_that_left_out_a_barrier_are_named_together() -> None:
    programs = [[*[PASS] * 40, *([] if rank in (1, 3) else [BARRIER]), PASS] for rank in range(5)]
    found = settled(numbered_apart(World({"0": (tuple(range(5)), "default_pg")}, programs).run().scene()))
    assert found is not None and found.ranks == (1, 3)
    assert "did not come to barrier #1" in found.sentence
    assert "where 3 others are; they are in the backward pass #41" in found.sentence


def test_of_two_ranks_apart_nobody_says_who_is_right() -> None:
    scene = numbered_apart(scene_of([*[PASS] * 30, BARRIER, PASS], [PASS] * 31, 2))
    found = settled(scene)
    assert found is not None and "did not come" not in found.sentence


@pytest.mark.parametrize("change", ["left out", "too many"])
def test_of_two_groups_in_turn_a_call_left_out_looks_like_the_other_made_twice(change: str) -> None:
    groups = {"0": (tuple(range(4)), "default_pg"), "1": (tuple(range(4)), "other")}
    one, two = call("all_reduce", 7, group="0"), call("all_reduce", 9, 10, group="1")
    usual = [one, two] * 8
    odd = [*[one, two] * 4, two, *([one, two] * 4 if change == "too many" else [*[one, two] * 3])]
    found = settled(World(groups, [odd if rank == 1 else usual for rank in range(4)]).run().scene())
    assert found is not None and found.ranks == (1,), found
    assert "too often" not in found.sentence and "without" not in found.sentence, found.sentence
    assert "train.py:9" in found.sentence
