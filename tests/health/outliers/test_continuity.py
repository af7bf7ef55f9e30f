"""How long a machine must be apart, and what is not held against it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from robust_run.health.outliers import continuity
from robust_run.health.outliers.types import Distances, OutlierLimits, OutlierVerdict, Reading

sys.path.insert(0, str(Path(__file__).parent))
from fleets import CPU, LEVELS, POWER, fleet_of

LIMITS = OutlierLimits(settle_s=0)


def said(spreads: list[np.ndarray], limits: OutlierLimits = LIMITS, machines: int = 8) -> list[OutlierVerdict]:  # type: ignore[type-arg]
    fleet = fleet_of(machines)
    state, verdicts = continuity.begin(fleet), []
    for second, each in enumerate(spreads):
        reading = Reading(float(second), np.where(np.isnan(each), np.nan, LEVELS))
        state, news = continuity.advance(state, fleet, reading, Distances(each), limits)
        verdicts += news
    return verdicts


def apart(spread: float, metric: int = CPU, machine: int = 2, machines: int = 8) -> np.ndarray:  # type: ignore[type-arg]
    spreads = np.zeros((machines, 4))
    spreads[machine, metric] = spread
    return spreads


@pytest.mark.parametrize(("spread", "seconds"), [(-4.0, 20), (-8.0, 10), (-800.0, 10), (4.0, 130)])
def test_the_farther_apart_the_sooner_up_to_a_limit(spread: float, seconds: int) -> None:
    assert said([apart(spread)] * (seconds - 1)) == []
    assert [verdict.machine for verdict in said([apart(spread)] * (seconds + 1))] == ["node-2"]


def test_what_is_not_apart_never_becomes_evidence() -> None:
    assert said([apart(-3.9)] * 1000) == []


def test_evidence_fades() -> None:
    assert said(([apart(-8.0)] * 8 + [apart(0.0)] * 20) * 5) == []


def test_one_missing_reading_neither_adds_nor_takes() -> None:
    missing = apart(np.nan)
    (verdict,) = said([*[apart(-8.0)] * 5, missing, *[apart(-8.0)] * 6])
    assert verdict.at_s == pytest.approx(10, abs=1)


def test_a_crowd_is_an_event() -> None:
    crowd = np.zeros((8, 4))
    crowd[:3, CPU] = -8.0
    assert said([crowd] * 100) == []


def test_families_add_where_it_is_asked_for() -> None:
    both = apart(-8.0)
    both[2, POWER] = -8.0
    alone, together = said([both] * 60), said([both] * 60, OutlierLimits(settle_s=0, families_add=True))
    assert together[0].at_s < alone[0].at_s


def test_after_it_has_recovered_a_machine_can_be_accused_again() -> None:
    fault, calm = [apart(-8.0)] * 20, [apart(0.0)] * 60
    assert len(said([*fault, *calm, *fault])) == 2


def test_nobody_is_accused_before_things_have_settled() -> None:
    assert said([apart(-8.0)] * 100, OutlierLimits(settle_s=100)) == []
    assert len(said([apart(-8.0)] * 115, OutlierLimits(settle_s=100))) == 1


def test_who_is_still_apart_is_said_again_and_then_that_it_is_over() -> None:
    limits = OutlierLimits(settle_s=0, repeat_s=30)
    verdicts = said([apart(-8.0)] * 80 + [apart(0.0)] * 60, limits)
    assert [each.state for each in verdicts] == ["new", "still", "still", "over"]
    assert {each.machine for each in verdicts} == {"node-2"}
    assert [name for name, _, _ in verdicts[1].signs] == ["cpu_percent"]
