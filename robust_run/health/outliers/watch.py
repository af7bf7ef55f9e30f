"""The two halves put together: one call for each reading of the fleet, state in, state and verdicts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from robust_run.health.outliers import continuity
from robust_run.health.outliers.detectors.protocol import Detector, State
from robust_run.health.outliers.detectors.spread import SpreadDetector
from robust_run.health.outliers.need import need_numpy
from robust_run.health.outliers.types import Limits

if TYPE_CHECKING:
    from robust_run.health.outliers.continuity import ContinuityState
    from robust_run.health.outliers.deviation import DeviationState
    from robust_run.health.outliers.types import Fleet, Reading, Verdict


@dataclass(frozen=True, slots=True)
class WatchState(Generic[State]):
    """What is remembered between two readings."""

    detector: State
    continuity: ContinuityState


@dataclass(frozen=True, slots=True)
class Watch(Generic[State]):
    """A fleet, a detector and limits. Pure: keep the state yourself."""

    fleet: Fleet
    detector: Detector[State]
    limits: Limits

    def begin(self) -> WatchState[State]:
        """Return the state before the first reading."""
        return WatchState(self.detector.begin(self.fleet), continuity.begin(self.fleet))

    def step(self, state: WatchState[State], reading: Reading) -> tuple[WatchState[State], list[Verdict]]:
        """Return the next state, and a verdict for each machine that has just become a culprit."""
        seen, distances = self.detector.step(state.detector, self.fleet, reading)
        said, verdicts = continuity.advance(state.continuity, self.fleet, reading, distances, self.limits)
        return WatchState(seen, said), verdicts


def default_watch(fleet: Fleet, limits: Limits | None = None) -> Watch[DeviationState]:
    """Return the detector and limits that measured best (docs/outliers.md). Raises UserError without numpy."""
    need_numpy()
    limits = limits or Limits()
    return Watch(fleet, SpreadDetector(limits.settle_s), limits)
