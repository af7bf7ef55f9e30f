"""Who reads what: each unit once, by one who wants it, evenly, within the memory of a round."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.rules.shares import UnitId, UnitInterval, intervals, share_out

UNIT_BYTES = 8
units = st.builds(UnitId, st.integers(0, 2), st.integers(0, 12))


def size_of(unit: UnitId) -> int:
    return UNIT_BYTES if unit.unit < 10 else 3


@given(st.lists(st.sets(units), min_size=1, max_size=5), st.sampled_from([1, 8, 20, 1000]))
def test_each_unit_is_read_once_by_one_of_those_who_want_it(wants: list[set[UnitId]], round_bytes: int) -> None:
    shares = share_out([intervals(want) for want in wants], size_of, round_bytes)
    read = Counter[UnitId]()
    for rank, want in enumerate(wants):
        mine = [unit for step in shares.rounds for unit in step.reads[rank]] + shares.alone[rank]
        assert set(mine) <= want
        assert shares.loads_bytes[rank] == sum(map(size_of, mine))
        read.update(mine)
    assert read == Counter(set().union(*wants))


@given(st.lists(st.sets(units), min_size=2, max_size=5))
def test_what_only_one_wants_is_given_to_nobody(wants: list[set[UnitId]]) -> None:
    shares = share_out([intervals(want) for want in wants], size_of, 100)
    for step in shares.rounds:
        for unit in (unit for reads in step.reads for unit in reads):
            assert sum(unit in want for want in wants) > 1


@given(st.lists(st.sets(units), min_size=1, max_size=4), st.sampled_from([1, 8, 20]))
def test_no_rank_reads_more_in_a_round_than_fits(wants: list[set[UnitId]], round_bytes: int) -> None:
    for step in share_out([intervals(want) for want in wants], size_of, round_bytes).rounds:
        assert any(step.reads)
        for reads in step.reads:
            assert len(reads) <= 1 or sum(map(size_of, reads)) <= round_bytes


def test_all_read_equally_much_when_all_want_the_same() -> None:
    everything = [UnitInterval(0, 0, 1000)]
    shares = share_out([everything] * 4, lambda _: UNIT_BYTES, 64 * UNIT_BYTES)
    assert shares.loads_bytes == [250 * UNIT_BYTES] * 4
    assert len(shares.rounds) == 4


def test_who_has_much_to_read_alone_reads_less_for_others() -> None:
    common = [UnitInterval(0, 0, 10)]
    shares = share_out([[*common, UnitInterval(1, 0, 10)], common], lambda _: UNIT_BYTES, 1000)
    assert shares.loads_bytes == [10 * UNIT_BYTES, 10 * UNIT_BYTES]


def test_units_in_a_row_travel_as_one_interval() -> None:
    assert intervals({UnitId(1, 4), UnitId(0, 2), UnitId(0, 1), UnitId(1, 6)}) == [
        UnitInterval(0, 1, 3),
        UnitInterval(1, 4, 5),
        UnitInterval(1, 6, 7),
    ]
