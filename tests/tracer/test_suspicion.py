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


def test_the_longest_wait_of_the_node_is_the_one_that_is_reported() -> None:
    suspicion = Suspicion(5.0)
    suspicion.look({0: RingHeartbeat(1, 1, None), 1: RingHeartbeat(1, 1, None)}, 0.0)
    found = suspicion.look({0: RingHeartbeat(1, 1, 3.0), 1: RingHeartbeat(1, 1, 1.0)}, 30.0)
    assert found is not None
    assert (found.rank, found.waited_s) == (1, 29.0)


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
