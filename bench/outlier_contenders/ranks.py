"""Ranks: per metric, a machine that is at the same end of its role's order in reading after reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust_run.health.outliers import deviation
from robust_run.health.outliers.types import Distances

if TYPE_CHECKING:
    from robust_run.health.outliers.deviation import DeviationState
    from robust_run.health.outliers.types import Array, Reading, WatchedFleet

MEMORY_S = 20.0


@dataclass(frozen=True, slots=True)
class RankState:
    """Deviations, and the average rank of each machine."""

    deviation: DeviationState
    rank: Array


class RankDetector:
    """Needs no scale at all. But in every reading somebody is first, and noise that lasts looks like a fault."""

    name = "ranks"

    def begin(self, fleet: WatchedFleet) -> RankState:
        """Return the state before the first reading."""
        state = deviation.begin(fleet)
        return RankState(deviation=state, rank=state.habit)

    def step(self, state: RankState, fleet: WatchedFleet, reading: Reading) -> tuple[RankState, Distances]:
        """Return the next state, and the distances of this reading."""
        import numpy as np

        following, seen = deviation.advance(state.deviation, fleet, reading.values)
        score = np.full(seen.raw.shape, np.nan)
        for rows, size in zip(following.groups.member, following.groups.sizes, strict=True):
            members = rows[:size]
            order = seen.raw[members].argsort(axis=0).argsort(axis=0)  # NaN last
            known = np.count_nonzero(~np.isnan(seen.raw[members]), axis=0)
            score[members] = (2 * order + 1 - known) / np.maximum(known, 1)
        score[np.isnan(seen.raw)] = np.nan
        share = fleet.interval_s / (MEMORY_S + fleet.interval_s)
        rank = np.where(np.isnan(score), state.rank, state.rank + share * (score - state.rank))
        sigma = np.sqrt(share / (2 - share) / 3)  # of the average of independent uniform ranks
        return RankState(following, rank), Distances(spreads=np.where(np.isnan(score), np.nan, rank / sigma))
