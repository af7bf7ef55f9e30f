"""All metrics at once: Mahalanobis distance with a robust covariance, and the residual outside the usual directions (PCA).

The covariance is the slow average of outer products of deviations, each cut to a few spreads so that outliers do not stretch
it, shrunk towards its diagonal. Minder's baseline is the Mahalanobis distance (arXiv 2411.01791, section 6.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust_run.health.outliers import deviation
from robust_run.health.outliers.types import Distances

if TYPE_CHECKING:
    from robust_run.health.outliers.deviation import DeviationState
    from robust_run.health.outliers.types import Array, Reading, WatchedFleet

MEMORY_S = 120.0
CUT = 3.0
SHRINK = 0.1
PCA_SHARE = 0.8
"""Directions that carry so much of the variance are usual."""


@dataclass(frozen=True, slots=True)
class TogetherState:
    """Deviations, and how they usually go together."""

    deviation: DeviationState
    covariance: Array
    """Metrics x metrics, of deviations in spreads."""


class TogetherDetector:
    """One distance per machine; it is booked on the metric that contributes most."""

    def __init__(self, name: str) -> None:
        assert name in ("mahalanobis", "pca")
        self.name = name

    def begin(self, fleet: WatchedFleet) -> TogetherState:
        """Return the state before the first reading."""
        import numpy as np

        return TogetherState(deviation=deviation.begin(fleet), covariance=np.eye(len(fleet.metrics)))

    def step(self, state: TogetherState, fleet: WatchedFleet, reading: Reading) -> tuple[TogetherState, Distances]:
        """Return the next state, and the distances of this reading."""
        import numpy as np

        following, seen = deviation.advance(state.deviation, fleet, reading.values)
        score = np.nan_to_num(seen.smooth / seen.spread)
        cut = score.clip(-CUT, CUT)
        share = fleet.interval_s / (MEMORY_S + fleet.interval_s)
        covariance = (1 - share) * state.covariance + share * (cut.T @ cut / max(len(cut), 1))
        metrics = len(fleet.metrics)
        if self.name == "mahalanobis":
            shrunk = (1 - SHRINK) * covariance + SHRINK * np.diag(np.diag(covariance)) + 1e-3 * np.eye(metrics)
            parts = score * np.linalg.solve(shrunk, score.T).T
            distance = np.sqrt(np.maximum(parts.sum(axis=1), 0) / metrics)
        else:
            variances, axes = np.linalg.eigh(covariance)
            usual = np.cumsum(variances[::-1]) <= PCA_SHARE * variances.sum()
            kept = axes[:, ::-1][:, usual]
            left = score - score @ kept @ kept.T
            parts = left**2
            distance = np.sqrt(parts.sum(axis=1) / max(variances[::-1][~usual].sum(), 1e-6))
        worst = parts.argmax(axis=1)
        rows = np.arange(len(score))
        spreads = np.where(np.isnan(seen.raw), np.nan, 0.0)
        spreads[rows, worst] = np.where(np.isnan(seen.raw).all(axis=1), np.nan, distance * np.sign(score[rows, worst]))
        return TogetherState(following, covariance), Distances(spreads=spreads)
