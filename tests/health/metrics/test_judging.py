"""When training has gone wrong, by what the script says of it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.metrics.reports import MetricPoint
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.sensors.types import Event
from robust_run.health.signs.training import TrainingState, judge, role_of

SETTINGS = TrainingSettings()
GOOD = [2.0 - number / 100 for number in range(40)]


def said(
    values: list[float], name: str = "loss", settings: TrainingSettings = SETTINGS, step_s: float = 1.0
) -> list[Event]:
    state, events = TrainingState(), []
    for step, value in enumerate(values):
        point = MetricPoint(at_s=step * step_s, step=step, values={name: value})
        state, new = judge(settings, "rank 3", state, (point,), step * step_s)
        events += new
    return events


def paced(step_times_s: list[float]) -> list[Event]:
    state, events, now_s = TrainingState(), [], 0.0
    for step, step_s in enumerate(step_times_s):
        now_s += step_s
        state, new = judge(SETTINGS, "rank 3", state, (MetricPoint(at_s=now_s, step=step, values={}),), now_s)
        events += new
    return events


def test_training_that_goes_well_says_nothing() -> None:
    assert said([*GOOD, *GOOD]) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_said_at_once_and_once(value: float) -> None:
    events = said([*GOOD, value, value, value])
    assert [(event.name, event.subject) for event in events] == [("training.nan", "rank 3")]
    assert f"loss is {value} at step 40" in events[0].detail


def test_a_few_gradients_that_overflow_are_mixed_precision_at_work() -> None:
    assert said([math.inf] * 4 + GOOD, "grad_norm") == []
    assert [event.name for event in said([math.nan] * 5, "grad_norm")] == ["training.nan"]


def test_a_loss_five_times_what_it_was_is_a_jump() -> None:
    """ByteRobust 4.1: 5 times and more."""
    events = said([*GOOD, 9.5, 9.5])
    assert [event.name for event in events] == ["training.jump"]
    assert "times its median of the last 40 steps at step 41" in events[0].detail
    assert said([*GOOD, 8.0, 8.0, 8.0]) == []


def test_one_spike_alone_is_clipped_and_forgotten() -> None:
    assert said([*GOOD, 50.0, *GOOD, 50.0, *GOOD], "grad_norm") == []


def test_the_first_steps_of_training_are_not_judged_for_jumps() -> None:
    assert said([1.0, 100.0, 100.0, 100.0]) == []


def test_a_new_level_is_said_once_and_when_it_stays_and_then_is_how_it_is() -> None:
    assert [event.name for event in said([*GOOD, *[20.0] * 19])] == ["training.jump"]
    first, stays = said([*GOOD, *[20.0] * 200])
    assert (first.name, stays.name) == ("training.jump", "training.jump.stays")
    assert "for 20 values in a row" in stays.detail


def test_a_jump_that_goes_down_again_does_not_stay() -> None:
    assert {event.name for event in said([*GOOD, *([20.0] * 15 + GOOD[:5]) * 8])} == {"training.jump"}


def test_a_loss_that_goes_down_to_zero_or_below_does_not_jump() -> None:
    assert said([0.0, -1.0] * 40 + [5.0] * 3) == []
    assert said([0.0] * 40 + [1e-9] * 3) == [], "nothing is known of how large it is"


@st.composite
def noise(draw: st.DrawFn) -> tuple[list[float], float, float]:
    """A healthy series at any height and of any size, with its height and its spread."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    spread = 10 ** draw(st.floats(-12, 12))
    height = draw(st.floats(-100, 100)) * spread
    one = draw(
        st.sampled_from([lambda: chance.gauss(0, 1), lambda: chance.uniform(-1, 1), lambda: chance.expovariate(1)])
    )
    return [height + spread * one() for _ in range(300)], height, spread


@given(noise())
def test_noise_is_no_jump_wherever_it_lies(series: tuple[list[float], float, float]) -> None:
    """Around zero every second value is a multiple of the one before."""
    values, _, _ = series
    assert said(values) == []


@given(noise(), st.floats(40, 1e6))
def test_a_rise_far_beyond_noise_and_size_is_a_jump_wherever_it_begins(
    series: tuple[list[float], float, float], far: float
) -> None:
    values, height, spread = series
    risen = height + far * spread + 5 * max(height, 0.0)
    (event,) = said([*values, risen, risen])
    assert event.name == "training.jump"


def test_what_a_jump_is_measured_by_is_said() -> None:
    (event,) = said([(-1.0) ** number - 3 for number in range(40)] + [40.0] * 2)
    assert event.detail == "loss is 40, 29.0 times its spread above the median of the last 40 steps at step 41"


def test_steps_that_take_half_as_long_again_for_a_minute_are_slow() -> None:
    assert paced([1.0] * 200) == []
    events = paced([1.0] * 400 + [1.6] * 100)
    assert [event.name for event in events] == ["training.slow"]
    assert "1.6 times what is usual (1 s)" in events[0].detail


def test_a_checkpoint_or_an_evaluation_is_no_loss_of_speed() -> None:
    assert paced(([1.0] * 30 + [60.0]) * 6) == []


def test_batches_that_a_resumed_run_skips_do_not_make_its_work_look_slow() -> None:
    assert paced([0.01] * 30 + [1.0] * 200)[1:] == paced([1.0] * 200)


def test_steps_that_are_counted_anew_are_no_mistake() -> None:
    state = TrainingState()
    points = tuple(MetricPoint(at_s=float(at), step=step, values={}) for at, step in enumerate([5, 6, 1, 2, 2, 3]))
    judge(SETTINGS, "", state, points, 0.0)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("loss", "loss"),
        ("train/loss", "loss"),
        ("lm-loss", "loss"),
        ("train_loss_step", "loss"),
        ("grad_norm", "grad_norm"),
        ("train/grad-norm", "grad_norm"),
        ("global_gradient_norm", "grad_norm"),
        ("val/loss", ""),
        ("eval_loss", ""),
        ("loss_scale", ""),
        ("glossary", ""),
        ("lr", ""),
    ],
)
def test_a_number_s_name_says_what_it_is(name: str, role: str) -> None:
    assert role_of(name) == role


@given(st.lists(st.tuples(st.floats(), st.integers(-5, 1 << 62), st.floats(allow_nan=True)), max_size=80))
def test_whatever_is_said_can_be_judged(said_: list[tuple[float, int, float]]) -> None:
    points = tuple(MetricPoint(at_s=at_s, step=step, values={"loss": value}) for at_s, step, value in said_)
    _, events = judge(SETTINGS, "", TrainingState(), points, 0.0)
    assert len(events) <= 3


def test_only_so_many_numbers_are_followed() -> None:
    many = MetricPoint(at_s=0.0, step=0, values={f"loss_{number}": 1.0 for number in range(1000)})
    state, _ = judge(SETTINGS, "", TrainingState(), (many,), 0.0)
    assert len(state.series) == SETTINGS.most_series
