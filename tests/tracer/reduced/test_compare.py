"""Reduced values of ranks, and which of them are named: a machine that computes wrong, and no program that is just different."""

from __future__ import annotations

import msgspec
import pytest

from robust_run.tracer.reduced.compare import MOST_OPEN, TRUSTED, Comparison
from robust_run.tracer.reduced.types import ReducedDifference, ReducedValue

RANKS = (0, 1, 2)
BASE = ReducedValue(0, 7, 3, 0, 1, 1000, 1, 0, 1000, 0, 0)


def reported(seq: int, *checksums: int, ranks: tuple[int, ...] = RANKS, **more: int) -> list[ReducedValue]:
    """Return what ranks say of one call; `size` is as many as there are unless it is given."""
    size = more.pop("size", len(checksums))
    one = msgspec.structs.replace(BASE, seq=seq, size=size, step=10 * seq, **more)
    return [
        msgspec.structs.replace(one, rank=rank, checksum=number) for rank, number in zip(ranks, checksums, strict=True)
    ]


def trusted(ranks: int = 3) -> Comparison:
    """Return a comparison in which values were the same so far."""
    found = Comparison()
    for seq in range(1, TRUSTED + 1):
        assert not found.hear(reported(seq, *[seq] * ranks, ranks=tuple(range(ranks))))
    return found


def named(found: list[ReducedDifference]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(each.ranks, each.others) for each in found]


def test_the_rank_that_differs_from_the_others_is_named() -> None:
    assert named(trusted().hear(reported(9, 5, 6, 5))) == [((1,), (0, 2))]


def test_of_two_it_cannot_be_told_and_both_are_named() -> None:
    assert named(trusted(2).hear(reported(9, 5, 6, ranks=(0, 1)))) == [((0, 1), ())]


def test_where_half_of_a_group_differs_from_the_other_half_all_are_named() -> None:
    assert named(trusted(4).hear(reported(9, 5, 6, 5, 6, ranks=(0, 1, 2, 3)))) == [((0, 1, 2, 3), ())]


def test_several_that_differ_from_a_majority_are_named_together() -> None:
    found = trusted(5).hear(reported(9, 5, 6, 5, 8, 5, ranks=(0, 1, 2, 3, 4)))
    assert named(found) == [((1, 3), (0, 2, 4))]


# --- what looks like it and is none ---------------------------------------------------------------------------------


def test_values_that_were_never_the_same_say_nothing() -> None:
    found = Comparison()
    for seq in range(50):
        assert not found.hear(reported(seq, seq, seq, seq + 1))


def test_values_that_are_the_same_only_now_and_then_say_nothing() -> None:
    found = Comparison()
    for seq in range(0, 40, 2):
        assert not found.hear([*reported(seq, 1, 1, 1), *reported(seq + 1, 1, 2, 1)])


def test_values_that_fall_apart_altogether_are_another_way_of_adding_up_and_not_looked_at_until_they_are_equal() -> (
    None
):
    found = trusted()
    assert not found.hear(reported(8, 4, 5, 6))
    assert not found.hear(reported(9, 5, 6, 5))


def test_ranks_at_other_steps_are_compared_by_the_call_and_not_by_the_step() -> None:
    found = trusted()
    one, two, three = reported(9, 5, 5, 5)
    assert not found.hear([one, msgspec.structs.replace(two, step=3), msgspec.structs.replace(three, step=4000)])
    one, two, three = reported(10, 5, 6, 5)
    assert not found.hear([one, msgspec.structs.replace(two, seq=11), three]), "rank 1 speaks of another call"


def test_a_group_of_which_not_all_have_spoken_is_not_judged() -> None:
    found = trusted()
    assert not found.hear(reported(9, 5, 6, ranks=(0, 1), size=3))


@pytest.mark.parametrize("field", ["group", "size", "kind", "numel", "dtype", "start", "length"])
def test_what_is_of_another_group_size_or_place_is_not_compared(field: str) -> None:
    found = trusted()
    one, two, three = reported(9, 5, 6, 5)
    assert not found.hear([one, msgspec.structs.replace(two, **{field: 4}), three])


def test_a_rank_that_says_the_same_twice_is_not_taken_for_two() -> None:
    found = trusted()
    one, two, _ = reported(9, 5, 6, 5)
    assert not found.hear([one, two, one, two])


def test_calls_that_never_become_whole_are_forgotten() -> None:
    found = trusted()
    for seq in range(10, 1000):
        assert not found.hear(reported(seq, 5, ranks=(0,), size=3))
    assert not found.hear(reported(10, 5, 6, ranks=(1, 2), size=3)), "too late"
    assert named(found.hear(reported(999, 6, 5, ranks=(1, 2), size=3))) == [((1,), (0, 2))]
    assert sum(len(calls) for calls in found._open.values()) <= MOST_OPEN


def test_a_lone_rank_has_no_peer() -> None:
    found = Comparison()
    for seq in range(9):
        assert not found.hear(reported(seq, seq, ranks=(0,)))
