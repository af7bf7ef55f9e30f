"""The textbook's z-score: per metric, distance from the mean of the role in standard deviations, averaged over a few readings.

No memory of what is usual for a machine. Minder uses it to rank metrics; here it shows what median and habit are worth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robust_run.health.outliers.peers import Groups, group_by_role, of_machines
from robust_run.health.outliers.types import Distances

if TYPE_CHECKING:
    from robust_run.health.outliers.types import Array, Reading, WatchedFleet

SMOOTH_S = 3.0


class PlainDetector:
    """Mean and standard deviation. In a group of n nobody can be more than (n - 1) / sqrt(n) deviations away."""

    name = "zscore"

    def begin(self, fleet: WatchedFleet) -> tuple[Groups, Array]:
        """Return the state before the first reading."""
        import numpy as np

        return group_by_role(fleet.roles), np.zeros((len(fleet.machines), len(fleet.metrics)))

    def step(
        self, state: tuple[Groups, Array], fleet: WatchedFleet, reading: Reading
    ) -> tuple[tuple[Groups, Array], Distances]:
        """Return the next state, and the distances of this reading."""
        import numpy as np

        groups, smooth = state
        table = np.where(groups.member[:, :, None] >= 0, reading.values[groups.member], np.nan)
        known = np.maximum(np.count_nonzero(~np.isnan(table), axis=1), 1)
        mean = np.nansum(table, axis=1) / known
        sigma = np.sqrt(np.nansum((table - mean[:, None]) ** 2, axis=1) / known)
        score = (reading.values - of_machines(mean, groups)) / np.maximum(of_machines(sigma, groups), 1e-9)
        smoothing = fleet.interval_s / (SMOOTH_S + fleet.interval_s)
        smooth = np.where(np.isnan(score), smooth, smooth + smoothing * (score - smooth))
        return (groups, smooth), Distances(spreads=np.where(np.isnan(score), np.nan, smooth))
