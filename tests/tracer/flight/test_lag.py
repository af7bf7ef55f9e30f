"""Who stays behind in a group whose other members go on, round by round, and who only looks like it."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.flight.lag import PAUSE_ROUNDS, ROUNDS, Lag, Lags
from robust_run.tracer.types import GroupProgress, RankClocks

ROUND_S = 10.0


class Fleet:
    """Ranks that say how far they are, every ten seconds."""

    def __init__(self) -> None:
        self.lags, self.at_s = Lags(), 0.0

    def round(self, counts: Mapping[int, int], *, stale: frozenset[int] = frozenset(), **fields: object) -> Lag | None:
        self.at_s += ROUND_S
        said = []
        for rank, count in counts.items():
            parts = {"name": "dp", "enqueued": count, "completed": count, "size": 4, "first": 0, "last": 3} | fields
            said.append(RankClocks(rank, 0.0 if rank in stale else self.at_s, (GroupProgress(**parts),)))  # type: ignore[arg-type]
        return self.lags.take(said)

    def rounds(self, count: int, *, stuck: int = -1, **fields: object) -> list[Lag]:
        found = []
        for number in range(1, count + 1):
            said = self.round({rank: 5 if rank == stuck else 5 + 10 * number for rank in range(4)}, **fields)
            found += [said] if said is not None else []
        return found


def test_a_rank_that_stands_while_others_go_on_is_named_with_group_and_distance() -> None:
    (lag,) = Fleet().rounds(ROUNDS + 1, stuck=2)
    assert (lag.rank, lag.group, lag.completed, lag.peers) == (2, "dp", 5, 3)
    assert lag.behind == 10 * (ROUNDS + 1)
    assert "it is 40 operations behind in group dp: it has completed #5, and 3 of its members go on" in lag.words


def test_it_is_not_said_again_and_again() -> None:
    assert len(Fleet().rounds(ROUNDS + PAUSE_ROUNDS, stuck=2)) == 1
    assert len(Fleet().rounds(ROUNDS + 3 * PAUSE_ROUNDS + 1, stuck=2)) == 3


def test_in_a_job_that_trains_nobody_lags() -> None:
    assert Fleet().rounds(50) == []


def test_a_rank_that_lags_and_catches_up_is_none() -> None:
    fleet = Fleet()
    for number in range(30):
        counts = dict.fromkeys(range(4), 10 * number) | {1: 10 * (number - number % 3)}
        assert fleet.round(counts) is None


def test_where_all_stand_since_one_evaluates_or_saves_that_is_a_wait_and_no_lag() -> None:
    fleet = Fleet()
    fleet.rounds(3)
    assert all(fleet.round({0: 35, 1: 36, 2: 36, 3: 36}) is None for _ in range(30))


def test_the_root_of_a_broadcast_may_be_ahead_by_what_buffers_hold() -> None:
    fleet = Fleet()
    assert all(fleet.round({0: 6 + (number > 0), 1: 6, 2: 6, 3: 6}) is None for number in range(30))


def test_counts_of_a_group_with_sends_and_receives_are_not_compared() -> None:
    assert Fleet().rounds(30, stuck=1, comparable=False) == []


def test_nor_are_those_of_groups_whose_members_are_not_known() -> None:
    assert Fleet().rounds(30, stuck=1, size=0) == []


def test_what_was_not_read_anew_says_nothing() -> None:
    fleet = Fleet()
    for number in range(1, 30):
        counts = {rank: 5 if rank == 1 else 10 * number for rank in range(4)}
        assert fleet.round(counts, stale=frozenset({1})) is None


def test_two_groups_of_one_name_without_a_common_member_are_two() -> None:
    lags, at_s = Lags(), 0.0
    for number in range(1, 30):
        at_s += ROUND_S
        said = [
            RankClocks(rank, at_s, (GroupProgress("tp", count, count, size=2, first=first, last=first + 1),))
            for first, count in ((0, 10 * number), (2, 7))
            for rank in (first, first + 1)
        ]
        assert lags.take(said) is None


def test_a_group_that_one_has_made_again_already_and_another_not_is_not_compared() -> None:
    fleet = Fleet()
    fleet.rounds(3)
    for number in range(30):
        fleet.at_s += ROUND_S
        said = [
            RankClocks(rank, fleet.at_s, (GroupProgress("dp", 1, count, size=4, first=0, last=3, made=made),))
            for rank, count, made in ((0, number * 10, 1), (1, 35, 0), (2, number * 10, 1), (3, number * 10, 1))
        ]
        assert fleet.lags.take(said) is None


def test_a_rank_that_counts_from_the_beginning_again_has_moved() -> None:
    fleet = Fleet()
    fleet.rounds(3)
    for number in range(1, 20):
        assert fleet.round({0: 3 * number, 1: 100 + number, 2: 100 + number, 3: 100 + number}) is None


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), max_size=20))
def test_only_a_rank_that_stood_for_all_rounds_is_ever_named(moves: list[list[int]]) -> None:
    fleet, counts, stood = Fleet(), [0] * 4, [0] * 4
    for number, round_ in enumerate(moves):
        counts = [count + move for count, move in zip(counts, round_, strict=True)]
        stood = [0 if move else known + 1 for known, move in zip(stood, round_, strict=True)]
        lag = fleet.round(dict(enumerate(counts)))
        assert lag is None or (number >= ROUNDS and stood[lag.rank] >= ROUNDS and counts[lag.rank] < max(counts))
