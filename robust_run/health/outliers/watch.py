"""The two halves put together: one call for each reading of the fleet, state in, state and verdicts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust_run.health.outliers import continuity, deviation
from robust_run.health.outliers.types import Distances, OutlierLimits

if TYPE_CHECKING:
    from robust_run.health.outliers.continuity import ContinuityState
    from robust_run.health.outliers.deviation import DeviationState
    from robust_run.health.outliers.types import Array, OutlierVerdict, Reading, WatchedFleet


from robust_run.errors import UserError


def need_numpy() -> None:
    """Raise UserError where numpy is missing, before anything else fails in a less helpful way."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise UserError("comparing machines needs numpy, which is not installed; pip install numpy") from None


class SpreadDetector:
    """Per metric: the deviation from peers and habit, in units of what is usual (a median/MAD z-score with a memory).

    The simplest thing that knows peers, habits and metrics apart. Never fuses metrics. Chosen by measurement (docs/outliers.md).
    """

    name = "spread"

    def __init__(self, learn_s: float = deviation.LEARN_S) -> None:
        self._learn_s = learn_s

    def begin(self, fleet: WatchedFleet) -> DeviationState:
        """Return the state before the first reading."""
        return deviation.begin(fleet)

    def step(
        self, state: DeviationState, fleet: WatchedFleet, reading: Reading, accused: Array | None = None
    ) -> tuple[DeviationState, Distances]:
        """Return the next state, and the distances of this reading. `accused`: 1 for machines that have been named."""
        import numpy as np

        following, seen = deviation.advance(state, fleet, reading.values, self._learn_s, accused)
        spreads = np.where(np.isnan(seen.raw), np.nan, seen.smooth / seen.spread)
        return following, Distances(spreads=spreads)


@dataclass(frozen=True, slots=True)
class WatchState:
    """What is remembered between two readings."""

    detector: DeviationState
    continuity: ContinuityState


@dataclass(frozen=True, slots=True)
class OutlierWatch:
    """A fleet, a detector and limits. Pure: keep the state yourself."""

    fleet: WatchedFleet
    detector: SpreadDetector
    limits: OutlierLimits

    def begin(self) -> WatchState:
        """Return the state before the first reading."""
        return WatchState(self.detector.begin(self.fleet), continuity.begin(self.fleet))

    def step(self, state: WatchState, reading: Reading) -> tuple[WatchState, list[OutlierVerdict]]:
        """Return the next state, and a verdict for each machine that has just become a culprit."""
        seen, distances = self.detector.step(state.detector, self.fleet, reading, state.continuity.accused)
        said, verdicts = continuity.advance(state.continuity, self.fleet, reading, distances, self.limits)
        return WatchState(seen, said), verdicts


def default_watch(fleet: WatchedFleet, limits: OutlierLimits | None = None) -> OutlierWatch:
    """Return the detector and limits that measured best (docs/outliers.md). Raises UserError without numpy."""
    need_numpy()
    limits = limits or OutlierLimits()
    return OutlierWatch(fleet, SpreadDetector(limits.settle_s), limits)
