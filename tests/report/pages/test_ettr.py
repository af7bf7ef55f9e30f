"""Each second of a job's life counts once, and ETTR is the share of those that were training that lasted."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_ground import BEGIN_S, attempt, incident

from robust_run.report.effective import Standstill
from robust_run.report.pages.ettr import WINDOW_S, course, longest_unproductive_s, ratio, seconds_by_kind, spans_of
from robust_run.report.pages.types import AttemptTimes, LifeSpan, ReportedCheckpoint
from robust_run.report.types import Action, Incident

HANG = (
    attempt(0, 1.0, started_s=2.0, first_step_s=10.0, verdict_s=105.0, ended_s=106.0, steps=90),
    attempt(1, 107.0, started_s=108.0, first_step_s=112.0, ended_s=200.0),
)


def of_hang(end_s: float = 200.0, resumed_s: float | None = None) -> tuple[LifeSpan, ...]:
    resumed = ReportedCheckpoint(created_s=BEGIN_S + resumed_s) if resumed_s is not None else None
    attempts = (HANG[0], msgspec.structs.replace(HANG[1], resumed=resumed))
    return spans_of(attempts, (incident(onset_s=100.0),), BEGIN_S, BEGIN_S + end_s)


def test_each_stretch_of_a_healed_hang_has_its_name() -> None:
    assert seconds_by_kind(of_hang()) == pytest.approx(
        {
            "productive": 90.0 + 88.0,
            "first_start": 10.0,
            "unnoticed": 4.0,
            "deciding": 1.0,
            "ending": 1.0,
            "waiting": 1.0,
            "starting": 5.0,
        }
    )
    assert ratio(of_hang()) == pytest.approx(178.0 / 200.0)


def test_what_was_trained_after_the_last_checkpoint_is_made_again() -> None:
    seconds = seconds_by_kind(of_hang(resumed_s=70.0))
    assert seconds["redone"] == pytest.approx(30.0)
    assert seconds["productive"] == pytest.approx(60.0 + 88.0)


def test_a_checkpoint_from_before_the_attempt_keeps_nothing_of_it() -> None:
    assert seconds_by_kind(of_hang(resumed_s=-500.0))["redone"] == pytest.approx(90.0)


def test_an_attempt_without_a_step_was_all_start() -> None:
    attempts = (attempt(0, 1.0, started_s=2.0, ended_s=50.0),)
    crash = incident(onset_s=49.0, detected_s=0.1, decided_s=1.0, resumed_s=None)
    seconds = seconds_by_kind(spans_of(attempts, (crash,), BEGIN_S, BEGIN_S + 60.0))
    assert "productive" not in seconds
    assert seconds["first_start"] == pytest.approx(49.0)
    assert seconds["unused"] == pytest.approx(10.0)


def test_without_steps_an_attempt_counts_once_its_workers_run() -> None:
    attempts = (attempt(0, 1.0, started_s=2.0, ended_s=50.0),)
    assert ratio(spans_of(attempts, (), BEGIN_S, BEGIN_S + 50.0, counts_steps=False)) == pytest.approx(48 / 50)


def test_what_was_only_reported_ends_no_training() -> None:
    reported = incident(onset_s=50.0, action=Action(name="report"))
    spans = spans_of(HANG[:1], (reported,), BEGIN_S, BEGIN_S + 90.0)
    assert seconds_by_kind(spans)["productive"] == pytest.approx(80.0)


def test_a_wait_that_was_only_reported_is_no_training_until_ranks_go_on() -> None:
    stood = (Standstill(BEGIN_S + 50.0, BEGIN_S + 60.0, 1), Standstill(BEGIN_S + 80.0, None, 2))
    attempts = (msgspec.structs.replace(HANG[0], ended_s=None, standstills=stood),)
    seconds = seconds_by_kind(spans_of(attempts, (), BEGIN_S, BEGIN_S + 90.0))
    assert seconds["standstill"] == pytest.approx(10.0 + 10.0)
    assert seconds["productive"] == pytest.approx(40.0 + 20.0)


def test_what_was_trained_before_and_after_a_standstill_is_made_again_as_any_other() -> None:
    stood = (Standstill(BEGIN_S + 80.0, BEGIN_S + 90.0, 1),)
    attempts = (
        msgspec.structs.replace(HANG[0], standstills=stood),
        msgspec.structs.replace(HANG[1], resumed=ReportedCheckpoint(created_s=BEGIN_S + 70.0)),
    )
    seconds = seconds_by_kind(spans_of(attempts, (incident(2, onset_s=100.0),), BEGIN_S, BEGIN_S + 200.0))
    assert seconds["redone"] == pytest.approx(10.0 + 10.0)
    assert seconds["standstill"] == pytest.approx(10.0)


def test_what_was_trained_before_a_job_began_anew_is_made_again() -> None:
    attempts = (HANG[0], msgspec.structs.replace(HANG[1], anew_s=BEGIN_S))
    seconds = seconds_by_kind(spans_of(attempts, (incident(onset_s=100.0),), BEGIN_S, BEGIN_S + 200.0))
    assert seconds["redone"] == pytest.approx(90.0)
    assert seconds["productive"] == pytest.approx(88.0)


def test_the_sliding_window_forgets_what_is_an_hour_ago() -> None:
    spans = (
        LifeSpan(kind="first_start", begin_s=0.0, end_s=WINDOW_S),
        LifeSpan(kind="productive", begin_s=WINDOW_S, end_s=3 * WINDOW_S),
    )
    last = course(spans)[-1]
    assert last.sliding == pytest.approx(1.0)
    assert last.cumulative == pytest.approx(2 / 3)
    assert ratio(spans, since_s=2 * WINDOW_S) == pytest.approx(1.0)
    assert longest_unproductive_s(spans) == WINDOW_S


def test_a_job_of_no_time_has_no_ratio() -> None:
    assert ratio(()) is None
    assert ratio(spans_of((), (), BEGIN_S, BEGIN_S)) is None
    assert course(()) == ()


moments = st.floats(-10.0, 500.0)
maybe = st.none() | moments


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[AttemptTimes], list[Incident]]:
    """Attempts and incidents with times in any order: clocks of several machines, damaged journals."""
    attempts, incidents = [], []
    for number in range(draw(st.integers(0, 4))):
        names = ("started_s", "first_step_s", "verdict_s", "told_s", "ended_s")
        times = {name: value for name in names if (value := draw(maybe)) is not None}
        stood = draw(st.lists(st.tuples(moments, maybe), max_size=3))
        standstills = tuple(
            Standstill(BEGIN_S + begin_s, BEGIN_S + end_s if end_s is not None else None) for begin_s, end_s in stood
        )
        attempts.append(attempt(number, draw(moments), standstills=standstills, **times))
        if draw(st.booleans()):
            incidents.append(
                incident(number + 1, number, draw(moments), detected_s=draw(moments), decided_s=draw(moments))
            )
    return attempts, incidents


@given(lives(), st.floats(0.0, 600.0), st.booleans(), st.dictionaries(st.integers(0, 4), moments))
def test_every_second_counts_exactly_once_whatever_the_times(
    life: tuple[list[AttemptTimes], list[Incident]], long_s: float, counts_steps: bool, kept: dict[int, float]
) -> None:
    attempts = [
        msgspec.structs.replace(each, resumed=ReportedCheckpoint(created_s=BEGIN_S + kept[each.number]))
        if each.number in kept
        else each
        for each in life[0]
    ]
    spans = spans_of(attempts, life[1], BEGIN_S, BEGIN_S + long_s, counts_steps=counts_steps)
    assert sum(span.end_s - span.begin_s for span in spans) == pytest.approx(long_s, abs=1e-5)
    assert all(one.end_s == other.begin_s for one, other in itertools.pairwise(spans))
    assert all(span.end_s > span.begin_s for span in spans)
    whole = ratio(spans)
    assert whole is None or 0.0 <= whole <= 1.0
    for point in course(spans, points=20):
        assert 0.0 <= point.cumulative <= 1.0
        assert 0.0 <= point.sliding <= 1.0


def test_checks_of_nodes_are_no_waiting_for_nodes() -> None:
    attempts = (
        attempt(0, 1.0, started_s=2.0, first_step_s=10.0, verdict_s=105.0, ended_s=106.0, checked_s=126.0),
        attempt(1, 127.0, started_s=128.0, first_step_s=132.0, ended_s=200.0),
    )
    seconds = seconds_by_kind(spans_of(attempts, (incident(onset_s=100.0),), BEGIN_S, BEGIN_S + 200.0))
    assert seconds["checking"] == pytest.approx(20.0)
    assert seconds["waiting"] == pytest.approx(1.0)
