"""Minder's own measure (arXiv 2411.01791, sections 4.2 to 4.4): per metric, the distances between machines' windows.

A window is the last eight readings, scaled to 0..1 by what the metric was in training data. A model may replace it by what it
makes of it (`lstm_vae`); without one this is the paper's ablation RAW. Each machine's distances to all its peers are added up
and divided by their number, and set against the other machines' sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust_run.health.outliers.peers import MAD_TO_SIGMA, Groups, group_by_role
from robust_run.health.outliers.types import Distances

if TYPE_CHECKING:
    from collections.abc import Callable

    from robust_run.health.outliers.types import Array, Reading, WatchedFleet

WINDOW = 8
LEAST_DISTANCE = 0.01
"""Of the metric's range: sums of distances closer together than this are equal."""


@dataclass(frozen=True, slots=True)
class PairwiseState:
    """Who is compared with whom, and the last readings (machines x metrics each; gaps filled with the nearest sample)."""

    groups: Groups
    window: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """What each metric ranges over in healthy training data; rates as logarithms."""

    low: Array
    high: Array

    def apply(self, fleet: WatchedFleet, values: Array) -> Array:
        """Return the values in 0..1, or beyond where they are beyond."""
        import numpy as np

        is_rate = np.array([metric.is_rate for metric in fleet.metrics])
        scaled = np.where(is_rate, np.log1p(np.maximum(values, 0.0)), values)
        result: Array = (scaled - self.low) / np.maximum(self.high - self.low, 1e-9)
        return result


class PairwiseDetector:
    """`peers`: within the role, or the whole fleet as one. `denoise` maps machines x metrics x window to the same shape."""

    def __init__(
        self, name: str, scale: Scale, denoise: Callable[[Array], Array] | None = None, *, by_role: bool = True
    ) -> None:
        self.name, self._scale, self._denoise, self._by_role = name, scale, denoise, by_role

    def begin(self, fleet: WatchedFleet) -> PairwiseState:
        """Return the state before the first reading."""
        roles = fleet.roles if self._by_role else ("",) * len(fleet.roles)
        return PairwiseState(group_by_role(roles))

    def step(self, state: PairwiseState, fleet: WatchedFleet, reading: Reading) -> tuple[PairwiseState, Distances]:
        """Return the next state, and the distances of this reading."""
        import numpy as np

        now = self._scale.apply(fleet, reading.values)
        before = state.window[-1] if state.window else np.nan_to_num(now)
        window = (*state.window, np.where(np.isnan(now), before, now))[-WINDOW:]
        following = PairwiseState(state.groups, window)
        if len(window) < WINDOW:
            return following, Distances(spreads=np.where(np.isnan(now), np.nan, 0.0))
        points = np.stack(window, axis=2)
        middle = points.mean(axis=2)
        if self._denoise is not None:
            points = self._denoise(points)
        spreads = np.zeros(now.shape)
        for rows, size in zip(state.groups.member, state.groups.sizes, strict=True):
            members = rows[:size]
            sums = _sums(points[members]) / size
            usual = np.median(sums, axis=0)
            stray = MAD_TO_SIGMA * np.median(np.abs(sums - usual), axis=0)
            side = np.sign(middle[members] - np.median(middle[members], axis=0))
            spreads[members] = side * np.maximum(sums - usual, 0) / np.maximum(stray, LEAST_DISTANCE)
        return following, Distances(spreads=np.where(np.isnan(now), np.nan, spreads))


def _sums(points: Array) -> Array:
    """Return machines x metrics: the sum of Euclidean distances from each machine's window to all others."""
    import numpy as np

    by_metric = points.transpose(1, 0, 2)
    squares = (by_metric**2).sum(axis=2)
    products = by_metric @ by_metric.transpose(0, 2, 1)
    between = np.sqrt(np.maximum(squares[:, :, None] + squares[:, None, :] - 2 * products, 0))
    return np.asarray(between.sum(axis=2).T)
