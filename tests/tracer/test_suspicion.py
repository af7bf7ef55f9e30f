"""When a wait counts as long: it follows the job's own rhythm."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.suspicion import LOOK_S, LongWait, RingHeartbeat, Suspicion


def steady(suspicion: Suspicion, gap_s: float, beats: int, now_s: float = 0.0) -> tuple[float, int]:
    """Let rank 0 make a step every `gap_s`; return when it ends, and its event count."""
    looks = round(gap_s / LOOK_S)
    for beat in range(1, beats + 1):
        for look in range(looks):
            now_s += LOOK_S
            since_s = now_s - LOOK_S * (look + 1)
            assert suspicion.look({0: RingHeartbeat(beat, beat, since_s if look else None)}, now_s) is None
    return now_s, beats


def steady_on(suspicion: Suspicion, events: int, now_s: float) -> tuple[float, int]:
    """Let rank 0 go on for some seconds."""
    for each in range(1, 20):
        now_s += LOOK_S
        assert suspicion.look({0: RingHeartbeat(events + each, events + each, None)}, now_s) is None
    return now_s, events + 19


def waits(suspicion: Suspicion, events: int, now_s: float, for_s: float, steps: int = 5) -> Iterator[LongWait]:
    since_s = now_s
    while now_s < since_s + for_s:
        now_s += LOOK_S
        found = suspicion.look({0: RingHeartbeat(events, steps, since_s)}, now_s)
        if found is not None:
            yield found


def test_a_wait_is_long_after_the_floor_where_steps_are_quick() -> None:
    suspicion = Suspicion(5.0)
    now_s, events = steady(suspicion, 0.5, 50)
    first = next(waits(suspicion, events, now_s, 20.0))
    assert (first.rank, first.after_s) == (0, 5.0)
    assert 5.0 <= first.waited_s <= 5.0 + LOOK_S


def test_a_job_whose_ranks_always_wait_long_is_given_three_times_as_long() -> None:
    suspicion = Suspicion(5.0)
    now_s, events = steady(suspicion, 4.0, 50)
    first = next(waits(suspicion, events, now_s, 60.0))
    assert first.after_s == 12.0


def test_before_the_first_step_there_is_more_patience() -> None:
    suspicion = Suspicion(5.0)
    first = next(waits(suspicion, 1, 0.0, 60.0, steps=0))
    assert first.after_s == 10.0


def test_a_job_whose_steps_are_not_counted_has_started_when_it_has_made_progress_for_a_while() -> None:
    suspicion = Suspicion(5.0)
    now_s = 0.0
    for event in range(1, 30):
        now_s += LOOK_S
        suspicion.look({0: RingHeartbeat(event, 0, None)}, now_s)
    assert next(waits(suspicion, 29, now_s, 60.0, steps=0)).after_s == 5.0


def test_a_wait_that_goes_on_is_reported_less_and_less_often() -> None:
    suspicion = Suspicion(5.0)
    now_s, events = steady(suspicion, 0.5, 50)
    reports = [round(found.waited_s) for found in waits(suspicion, events, now_s, 200.0)]
    assert reports == [5, 10, 20, 40, 80, 160]


def test_a_machine_that_was_suspended_does_not_make_a_wait_long() -> None:
    suspicion = Suspicion(5.0)
    now_s, events = steady(suspicion, 0.5, 50)
    assert list(waits(suspicion, events, now_s, 2.0)) == []
    after_s = now_s + 2.0 + 90.0
    assert suspicion.look({0: RingHeartbeat(events, 5, now_s)}, after_s) is None
    assert suspicion.look({0: RingHeartbeat(events + 1, 6, None)}, after_s + LOOK_S) is None, "it goes on"


def test_a_wait_that_was_begun_before_a_machine_was_suspended_is_found_after_it() -> None:
    suspicion = Suspicion(5.0)
    now_s, events = steady(suspicion, 0.5, 50)
    assert list(waits(suspicion, events, now_s, 2.0)) == []
    reports = []
    for look in range(60):
        found = suspicion.look({0: RingHeartbeat(events, 5, now_s)}, now_s + 92.0 + look * LOOK_S)
        reports += [(look * LOOK_S, found.waited_s)] if found is not None else []
    assert reports[0] == (2.0, 5.0), "the time before it counts"


def test_an_agent_that_is_hardly_let_run_finds_a_wait_all_the_same() -> None:
    suspicion = Suspicion(5.0)
    now_s, events = steady(suspicion, 0.5, 50)
    looks = [suspicion.look({0: RingHeartbeat(events, 5, now_s)}, now_s + 12.0 * turn) for turn in range(1, 10)]
    assert any(looks)


def test_and_hardly_later_than_one_that_is_let_run() -> None:
    """Looks that come 12 s apart, all of them, are no machine that was suspended again and again."""
    suspicion = Suspicion(60.0)
    now_s, events = steady(suspicion, 0.5, 50)
    turns = [turn for turn in range(1, 60) if suspicion.look({0: RingHeartbeat(events, 5, now_s)}, now_s + 12.0 * turn)]
    assert 12.0 * turns[0] <= 60.0 + 2 * 12.0


def test_a_machine_that_is_suspended_again_an_hour_later_is_no_busy_one() -> None:
    suspicion = Suspicion(60.0)
    now_s, events = steady(suspicion, 0.5, 50)
    for again in range(5):
        now_s += 50.0
        assert suspicion.look({0: RingHeartbeat(events, 5, now_s - 50.5)}, now_s) is None, again
        now_s, events = steady_on(suspicion, events, now_s)


def test_the_longest_wait_of_the_node_is_the_one_that_is_reported() -> None:
    suspicion = Suspicion(5.0)
    suspicion.look({0: RingHeartbeat(1, 1, None), 1: RingHeartbeat(1, 1, None)}, 0.0)
    found = suspicion.look({0: RingHeartbeat(1, 1, 3.0), 1: RingHeartbeat(1, 1, 1.0)}, 9.0)
    assert found is not None
    assert (found.rank, found.waited_s) == (1, 8.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0.0, 2.0)), max_size=60))
def test_nobody_is_suspected_who_makes_progress_within_the_floor(looks: list[tuple[int, bool, float]]) -> None:
    suspicion = Suspicion(5.0)
    now_s, since_s, events = 0.0, 0.0, 0
    for progress, is_waiting, passes_s in looks:
        now_s += passes_s
        events += progress
        if progress or now_s - since_s >= 4.9:
            since_s = now_s
        assert suspicion.look({0: RingHeartbeat(events, 1, since_s if is_waiting else None)}, now_s) is None


def test_what_the_start_took_says_nothing_of_a_wait_in_training() -> None:
    suspicion = Suspicion(5.0)
    now_s = 0.0
    for event in range(1, 4):  # imports, connections, a first step that compiles
        now_s += 20.0
        suspicion.look({0: RingHeartbeat(event, 0, None)}, now_s)
    for step in range(1, 6):
        now_s += 0.5
        suspicion.look({0: RingHeartbeat(3 + step, step, None)}, now_s)
    assert next(waits(suspicion, 8, now_s, 60.0)).after_s == 5.0


def look(suspicion: Suspicion, now_s: float, *beats: RingHeartbeat) -> tuple[int | None, int | None]:
    """Return the number of the wait that is reported at this look, and of the one that is over."""
    found = suspicion.look(dict(enumerate(beats)), now_s)
    return found.number if found is not None else None, suspicion.over


def test_a_wait_that_was_reported_is_over_once_and_the_next_one_is_another() -> None:
    suspicion, begun = Suspicion(5.0), RingHeartbeat(1, 5, None)
    look(suspicion, 0.0, begun)
    assert look(suspicion, 7.0, RingHeartbeat(1, 5, 1.0)) == (1, None)
    assert look(suspicion, 8.0, RingHeartbeat(1, 5, 1.0)) == (None, None), "it goes on"
    assert look(suspicion, 16.0, RingHeartbeat(1, 5, 1.0)) == (1, None), "and is reported again as the same"
    look(suspicion, 23.0, RingHeartbeat(1, 5, 1.0))
    assert look(suspicion, 31.0, RingHeartbeat(2, 6, None)) == (None, 1)
    assert look(suspicion, 32.0, RingHeartbeat(3, 7, None)) == (None, None)
    looks = [look(suspicion, float(at_s), RingHeartbeat(3, 7, 33.0)) for at_s in range(33, 301, 3)]
    assert next(each for each in looks if each != (None, None)) == (2, None)
    assert look(suspicion, 301.0, RingHeartbeat(4, 7, 300.9)) == (None, 2), "it ends one and begins another"


def test_a_wait_that_is_not_long_has_no_end_that_is_told() -> None:
    suspicion = Suspicion(5.0)
    look(suspicion, 0.0, RingHeartbeat(1, 5, None))
    assert look(suspicion, 3.0, RingHeartbeat(1, 5, 1.0)) == (None, None)
    assert look(suspicion, 4.0, RingHeartbeat(2, 6, None)) == (None, None)


def test_while_one_rank_still_waits_the_wait_of_the_node_goes_on() -> None:
    suspicion = Suspicion(5.0)
    look(suspicion, 0.0, RingHeartbeat(1, 5, None), RingHeartbeat(1, 5, None))
    assert look(suspicion, 9.0, RingHeartbeat(1, 5, 1.0), RingHeartbeat(1, 5, 2.0)) == (1, None)
    assert look(suspicion, 10.0, RingHeartbeat(2, 6, None), RingHeartbeat(1, 5, 2.0)) == (None, None)
    assert look(suspicion, 11.0, RingHeartbeat(3, 7, None), RingHeartbeat(2, 6, None)) == (None, 1)


def test_ranks_that_all_make_steps_do_not_stand_still_whatever_thread_of_theirs_waits() -> None:
    suspicion = Suspicion(5.0)
    look(suspicion, 0.0, RingHeartbeat(1, 5, None), RingHeartbeat(1, 5, None))
    assert look(suspicion, 9.0, RingHeartbeat(1, 5, 1.0), RingHeartbeat(1, 5, None)) == (1, None)
    assert look(suspicion, 10.0, RingHeartbeat(9, 5, 1.0), RingHeartbeat(9, 90, None)) == (None, None), "one does not"
    assert look(suspicion, 11.0, RingHeartbeat(10, 7, 1.0), RingHeartbeat(9, 90, None)) == (None, 1)


def test_a_rank_that_prints_and_makes_no_step_still_waits() -> None:
    suspicion = Suspicion(5.0)
    look(suspicion, 0.0, RingHeartbeat(1, 5, None))
    assert look(suspicion, 9.0, RingHeartbeat(1, 5, 1.0)) == (1, None)
    for events in range(2, 40):
        assert look(suspicion, 9.0 + events / 10, RingHeartbeat(events, 5, 1.0)) == (None, None)


# --- a wait that ends in an error


def over_after(*looks: tuple[dict[int, RingHeartbeat], frozenset[int]]) -> list[int | None]:
    """Two ranks wait for long, which is told; return what is said to be over at each of the looks that follow."""
    suspicion = Suspicion(5.0)
    assert suspicion.look({0: beat(9, 0.0), 2: beat(9, 0.0)}, 11.0) is not None
    said = []
    for number, (beats, failed) in enumerate(looks, 1):
        suspicion.look(beats, 11.0 + number, failed)
        said.append(suspicion.over)
    return said


def beat(events: int, since_s: float | None = None) -> RingHeartbeat:
    return RingHeartbeat(events, 3, since_s)


def test_ranks_whose_wait_has_ended_go_on() -> None:
    assert over_after(({0: beat(10), 2: beat(10)}, frozenset())) == [1]


def test_ranks_whose_wait_ended_in_an_error_do_not_go_on_until_they_do_something() -> None:
    failed, went_on = ({0: beat(10), 2: beat(10)}, frozenset({0, 2})), ({0: beat(12), 2: beat(12)}, frozenset[int]())
    assert over_after(failed, failed, went_on, went_on) == [None, None, 1, None]


def test_one_rank_whose_wait_ended_in_an_error_is_enough() -> None:
    assert over_after(({0: beat(10), 2: beat(10)}, frozenset({2}))) == [None]


def test_ranks_that_died_of_that_do_not_go_on() -> None:
    assert over_after(({0: beat(10)}, frozenset({2})), ({}, frozenset({0, 2}))) == [None, None]


def test_a_rank_that_did_not_wait_may_have_failed_in_whatever_it_did() -> None:
    assert over_after(({0: beat(10), 2: beat(10)}, frozenset({1}))) == [1]
