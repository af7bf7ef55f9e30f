"""All detectors have one shape; each sees a machine that is plainly apart, and says nothing of machines that are alike."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outlier_contenders.pairwise import PairwiseDetector, Scale
from outlier_contenders.plain import PlainDetector
from outlier_contenders.ranks import RankDetector
from outlier_contenders.together import TogetherDetector

from robust_run.health.outliers.types import Reading
from robust_run.health.outliers.watch import SpreadDetector

sys.path.insert(0, str(Path(__file__).parent))
from fleets import CPU, LEVELS, METRICS, ONSET, calm, fleet_of

SCALE = Scale(np.zeros(len(METRICS)), np.array([100.0, 700.0, 100.0, 15.0]))
DETECTORS: dict[str, Callable[[], Any]] = {
    "spread": SpreadDetector,
    "plain": PlainDetector,
    "ranks": RankDetector,
    "mahalanobis": lambda: TogetherDetector("mahalanobis"),
    "pca": lambda: TogetherDetector("pca"),
    "pairwise": lambda: PairwiseDetector("pairwise", SCALE),
    "pairwise of all": lambda: PairwiseDetector("pairwise of all", SCALE, by_role=False),
}


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS.keys())
def test_the_odd_machine_is_the_farthest(make: Callable[[], Any]) -> None:
    values, fleet, detector = calm(16), fleet_of(16), make()
    values[ONSET:, 5, CPU] *= 0.2
    values[ONSET + 14, 7] = np.nan
    state = detector.begin(fleet)
    for second in range(ONSET + 15):
        state, seen = detector.step(state, fleet, Reading(float(second), values[second]))
    strength = np.abs(seen.spreads).max(axis=1)
    assert int(np.nanargmax(strength)) == 5
    if detector.name != "pca":  # what is left outside the usual directions may be another metric's
        assert seen.spreads[5, CPU] < 0
    assert np.isnan(seen.spreads[7]).all()


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS.keys())
def test_equal_machines_are_not_apart(make: Callable[[], Any]) -> None:
    fleet, detector = fleet_of(8), make()
    state = detector.begin(fleet)
    for second in range(30):
        state, seen = detector.step(state, fleet, Reading(float(second), np.tile(LEVELS, (8, 1))))
    if make is not RankDetector:  # among equals somebody is first all the same
        assert np.abs(seen.spreads).max() < 1e-6


def test_the_models_learn_to_repeat_what_is_healthy() -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are so small that threads only wait for each other
    from outlier_contenders.lstm_vae import LstmVae

    random = np.random.default_rng(0)
    windows = np.clip(0.5 + random.normal(0, 0.02, (256, 2, 1)) + np.zeros((1, 1, 8)), 0, 1)
    model = LstmVae(2)
    untrained = float(((model(windows) - windows) ** 2).mean())
    model.train(windows, steps=80, batch=64)
    torch.set_num_threads(threads)
    assert float(((model(windows) - windows) ** 2).mean()) < untrained / 20
