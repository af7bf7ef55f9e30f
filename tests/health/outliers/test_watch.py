"""What the default detector says of fleets whose right verdict is plain to see."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.health.outliers.types import WatchedFleet

sys.path.insert(0, str(Path(__file__).parent))
from fleets import CPU, LEVELS, MEMORY, ONSET, PFC, POWER, calm, fleet_of, verdicts


def test_nobody_is_accused_in_a_calm_fleet() -> None:
    assert verdicts(fleet_of(16), calm(16)) == []


def test_a_machine_whose_process_died_is_named_within_seconds() -> None:
    values = calm(16)
    values[ONSET:, 5, CPU] *= 0.1
    (verdict,) = verdicts(fleet_of(16), values)
    assert (verdict.machine, verdict.metric, verdict.direction) == ("node-5", "cpu_percent", "below")
    assert ONSET - 1 <= verdict.since_s <= ONSET + 5
    assert verdict.at_s <= ONSET + 20
    assert verdict.value == pytest.approx(3, rel=0.2)
    assert verdict.peers == pytest.approx(30, rel=0.1)
    assert verdict.spreads < -4
    assert 0.5 <= verdict.confidence <= 1


def test_a_machine_is_named_once_not_every_second() -> None:
    values = calm(16, seconds=600)
    values[ONSET:, 5, MEMORY] *= 0.3
    assert len(verdicts(fleet_of(16), values)) == 1


def test_a_dip_of_a_few_seconds_accuses_nobody() -> None:
    values = calm(16)
    values[ONSET : ONSET + 8, 5, POWER] *= 0.3
    assert verdicts(fleet_of(16), values) == []


def test_all_that_is_apart_is_in_the_verdict() -> None:
    values = calm(16)
    values[ONSET:, 5, [CPU, POWER, MEMORY]] *= 0.2
    (verdict,) = verdicts(fleet_of(16), values)
    assert {verdict.metric, *verdict.also} == {"cpu_percent", "gpu_power_watts", "memory_used_percent"}


@pytest.mark.parametrize("factor", [0.0, 0.3, 3.0, 1000.0])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_an_event_of_the_whole_fleet_or_half_of_it_accuses_nobody(factor: float, share: float) -> None:
    values = calm(16)
    values[ONSET:, : int(16 * share)] *= factor
    assert verdicts(fleet_of(16), values) == []


def test_a_role_that_works_less_than_others_is_not_accused() -> None:
    values = calm(16)
    values[:, ::2] *= 0.4
    values[ONSET:, 1::2] *= 0.7
    assert verdicts(fleet_of(16, roles=2), values) == []


def test_a_habit_is_not_a_fault() -> None:
    values = calm(16)
    values[:, 0, CPU] *= 1.8
    assert verdicts(fleet_of(16), values) == []


def test_readings_a_minute_apart_need_more_than_one_or_two() -> None:
    fleet = replace(fleet_of(16), interval_s=60.0)
    values = calm(16, seconds=60)
    values[40:42, 3, CPU] *= 0.1
    assert verdicts(fleet, values) == []
    values[40:, 3, CPU] *= 0.1
    (verdict,) = verdicts(fleet, values)
    assert verdict.machine == "node-3"
    assert 42 <= verdict.at_s <= 45


def test_of_a_culprit_and_a_neighbour_that_shows_it_weaker_the_culprit_is_named() -> None:
    values = calm(16)
    values[ONSET:, 5, POWER] *= 0.3
    values[ONSET + 5 :, 6, POWER] *= 0.7
    assert [verdict.machine for verdict in verdicts(fleet_of(16), values)] == ["node-5"]


def test_a_machine_that_falls_silent_is_named() -> None:
    values = calm(16)
    values[ONSET:, 5] = np.nan
    (verdict,) = verdicts(fleet_of(16), values)
    assert (verdict.machine, verdict.metric, verdict.direction) == ("node-5", "silence", "silent")
    assert verdict.since_s == pytest.approx(ONSET, abs=1)


def test_silence_of_most_is_our_own_deafness() -> None:
    values = calm(16)
    values[ONSET:, 4:] = np.nan
    assert verdicts(fleet_of(16), values) == []


def test_one_of_three_is_found_and_one_of_two_is_not() -> None:
    three, two = calm(3), calm(2)
    three[ONSET:, 1, CPU] = two[ONSET:, 1, CPU] = 0
    assert [verdict.machine for verdict in verdicts(fleet_of(3), three)] == ["node-1"]
    assert verdicts(fleet_of(2), two) == []


def _one_fault(seed: int) -> tuple[np.ndarray, int]:  # type: ignore[type-arg]
    values = calm(12, seed=seed)
    culprit = seed % 12
    values[ONSET:, culprit, CPU] *= 0.2
    return values, culprit


@settings(max_examples=8)
@given(st.permutations(range(12)), st.integers(0, 50))
def test_the_order_of_machines_does_not_change_the_verdict(order: list[int], seed: int) -> None:
    values, _ = _one_fault(seed)
    fleet = fleet_of(12, roles=2)
    shuffled = WatchedFleet(
        tuple(fleet.machines[n] for n in order), tuple(fleet.roles[n] for n in order), fleet.metrics, fleet.interval_s
    )
    assert verdicts(shuffled, values[:, order]) == verdicts(fleet, values)


@settings(max_examples=8)
@given(st.integers(0, 50), st.integers(ONSET + 1, ONSET + 30), st.integers(0, 11), st.integers(0, 3))
def test_one_missing_sample_changes_no_name(seed: int, second: int, machine: int, metric: int) -> None:
    values, culprit = _one_fault(seed)
    values[second, machine, metric] = np.nan
    assert [verdict.machine for verdict in verdicts(fleet_of(12), values)] == [f"node-{culprit}"]


@settings(max_examples=8)
@given(st.floats(0.01, 100.0), st.integers(0, 50))
def test_the_unit_of_a_metric_does_not_matter(factor: float, seed: int) -> None:
    values, culprit = _one_fault(seed)
    values[:, :, :PFC] *= factor
    assert [verdict.machine for verdict in verdicts(fleet_of(12), values)] == [f"node-{culprit}"]


@settings(max_examples=20)
@given(st.lists(st.sampled_from([0.0, -1.0, 1e308, -1e308, 1e-308, float("nan"), 30.0]), min_size=12, max_size=12))
def test_absurd_readings_break_nothing(wild: list[float]) -> None:
    values = calm(12, seconds=30)
    values[:, :, CPU] = wild
    values[20:, 3] = wild[0]
    with np.errstate(all="ignore"):
        assert verdicts(fleet_of(12), values) == []


def test_a_state_is_not_changed_by_a_step() -> None:
    from robust_run.health.outliers.types import Reading
    from robust_run.health.outliers.watch import default_watch

    fleet, values = fleet_of(8), calm(8)
    watch = default_watch(fleet)
    state = watch.begin()
    for second in range(160):
        state, _ = watch.step(state, Reading(float(second), values[second]))
    reading = Reading(160.0, LEVELS * np.ones((8, 1)))
    first, second_time = watch.step(state, reading), watch.step(state, reading)
    assert np.array_equal(first[0].detector.smooth, second_time[0].detector.smooth)
    assert np.array_equal(first[0].continuity.below, second_time[0].continuity.below)
