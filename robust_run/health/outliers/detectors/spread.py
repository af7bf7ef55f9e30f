"""Per metric: the deviation from peers and habit, in units of what is usual (a median/MAD z-score with a memory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robust_run.health.outliers import deviation
from robust_run.health.outliers.types import Distances

if TYPE_CHECKING:
    from robust_run.health.outliers.deviation import DeviationState
    from robust_run.health.outliers.types import Fleet, Reading


class SpreadDetector:
    """The simplest thing that knows peers, habits and metrics apart. Never fuses metrics."""

    name = "spread"

    def __init__(self, learn_s: float = deviation.LEARN_S) -> None:
        self._learn_s = learn_s

    def begin(self, fleet: Fleet) -> DeviationState:
        """Return the state before the first reading."""
        return deviation.begin(fleet)

    def step(self, state: DeviationState, fleet: Fleet, reading: Reading) -> tuple[DeviationState, Distances]:
        """Return the next state, and the distances of this reading."""
        import numpy as np

        following, seen = deviation.advance(state, fleet, reading.values, self._learn_s)
        spreads = np.where(np.isnan(seen.raw), np.nan, seen.smooth / seen.spread)
        return following, Distances(spreads=spreads)
