"""From what machines read to how much each deviates: from its peers now, and from how it usually stands to them.

Three steps, each undoing something harmless. (1) Rates become logarithms. (2) The median of the role is taken away: phases of
the job, checkpoints and stops are the same for all peers. (3) The machine's own habit is taken away, the slow average of what
(2) leaves: a leader's busier CPU, a cooler rack. The habit follows slowly and by small steps only, so that a fault does not
become one before it is seen. What is left is averaged over a few readings.

Pure: `advance` takes a state and a reading, and returns the next state and the deviations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from robust_run.health.outliers.peers import MAD_TO_SIGMA, Groups, group_by_role, medians, of_machines

if TYPE_CHECKING:
    from robust_run.health.outliers.types import Array, WatchedFleet

LEARN_S = 150.0
"""The first habit is the median of so long: an event shorter than half of it does not become a habit."""
LEARN_READINGS = 30
"""Of so many readings, spread over that time; however far apart readings are, of no fewer."""
MOST_STEP = 2.5
"""A single reading moves the habit as if it were at most so many spreads away from it."""
MOST_READING = 20.0
"""A single reading counts as at most so many spreads: a wild one does not linger in the average."""
OWN_SPREAD = 1.5
"""A machine may stray so many times more than its peers usually do; beyond that it does not excuse itself."""
MEAN_TO_SIGMA = 1.25
"""Of normal noise: the standard deviation by the mean absolute deviation."""


@dataclass(frozen=True, slots=True)
class DeviationState:
    """What is remembered between two readings."""

    groups: Groups
    habit: Array
    """Machines x metrics: how each usually stands to its peers; 0 until it has been learnt."""
    spread: Array
    """Machines x metrics: how much it usually strays from that."""
    smooth: Array
    """Machines x metrics: the deviation, averaged over a few readings."""
    learnt: tuple[Array, ...] = ()
    """Machines x metrics, one every few seconds: what the first habit will be made of; empty once it is."""
    readings: int = 0


@dataclass(frozen=True, slots=True)
class Deviations:
    """One reading, seen from each machine's peers. All arrays are machines x metrics."""

    raw: Array
    """This reading's deviation; NaN where nothing was read."""
    smooth: Array
    """Averaged over a few readings; keeps its last value where nothing was read."""
    spread: Array
    """What is usual: the largest of the machine's own spread, that of its peers now, and the metric's least spread."""


def begin(fleet: WatchedFleet) -> DeviationState:
    """Return the state before the first reading."""
    import numpy as np

    zero = np.zeros((len(fleet.machines), len(fleet.metrics)))
    return DeviationState(groups=group_by_role(fleet.roles), habit=zero, spread=zero, smooth=zero)


def advance(
    state: DeviationState, fleet: WatchedFleet, values: Array, learn_s: float = LEARN_S, accused: Array | None = None
) -> tuple[DeviationState, Deviations]:
    """Return the next state and this reading's deviations. `learn_s`: in place of LEARN_S.

    `accused`: 1 for machines that have been named: what they do now does not become their habit, or a fault would end by itself.
    """
    import numpy as np

    is_rate = np.array([metric.is_rate for metric in fleet.metrics])
    scaled = np.where(is_rate, np.log1p(np.maximum(values, 0.0)), values)
    middle = of_machines(medians(scaled, state.groups), state.groups)
    apart = scaled - middle
    raw = apart - state.habit
    known = ~np.isnan(raw)

    least = np.array([metric.least_spread for metric in fleet.metrics]) * np.where(is_rate, 1.0, np.abs(middle))
    like_peers = OWN_SPREAD * of_machines(medians(state.spread, state.groups), state.groups)
    usual = np.fmax(np.fmin(state.spread, like_peers), np.fmax(least, 1e-9))
    smooth_s = np.array([metric.smooth_s for metric in fleet.metrics])
    smoothing = fleet.interval_s / (smooth_s + fleet.interval_s)
    bound = MOST_READING * usual
    smooth = np.where(known, state.smooth + smoothing * (raw.clip(-bound, bound) - state.smooth), state.smooth)
    usual = np.fmax(usual, MAD_TO_SIGMA * of_machines(medians(np.abs(smooth), state.groups), state.groups))
    seen = Deviations(raw=raw, smooth=smooth, spread=usual)

    if not _learnt(state.readings, fleet, learn_s):
        return _learn(replace(state, smooth=smooth, readings=state.readings + 1), fleet, apart, learn_s), seen
    limit = MOST_STEP * usual
    habit_s = np.array([[metric.habit_s for metric in fleet.metrics]])
    rate = fleet.interval_s / (habit_s + fleet.interval_s)
    if accused is not None:
        rate = np.where(accused[:, None] == 1, 0.0, rate)
    habit = np.where(known, state.habit + rate * raw.clip(-limit, limit), state.habit)
    stray = MEAN_TO_SIGMA * np.minimum(np.abs(smooth), limit)
    spread = np.where(known, state.spread + rate * (stray - state.spread), state.spread)
    return replace(state, habit=habit, spread=spread, smooth=smooth, readings=state.readings + 1), seen


def _learnt(readings: int, fleet: WatchedFleet, learn_s: float) -> bool:
    return readings >= LEARN_READINGS and readings * fleet.interval_s >= learn_s


def _learn(state: DeviationState, fleet: WatchedFleet, apart: Array, learn_s: float) -> DeviationState:
    """Collect; when there is enough, return the state with its first habit."""
    import numpy as np

    every = max(1, round(learn_s / LEARN_READINGS / fleet.interval_s))
    learnt = (*state.learnt, apart) if (state.readings - 1) % every == 0 else state.learnt
    if not _learnt(state.readings, fleet, learn_s):
        return replace(state, learnt=learnt)
    collected = np.stack(learnt)
    empty = np.isnan(collected).all(axis=0)
    collected[:, empty] = 0.0  # never seen so far: no habit, and none claimed
    habit = np.nanmedian(collected, axis=0)
    spread = MAD_TO_SIGMA * np.nanmedian(np.abs(collected - habit), axis=0)
    return replace(state, habit=habit, spread=spread, smooth=state.smooth - habit, learnt=())
