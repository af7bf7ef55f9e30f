"""From distances to verdicts: a machine must stay apart. Minder's idea (arXiv 2411.01791, section 4.4), with a different measure.

Minder waits four minutes for the same machine to stay the farthest. Here every reading in which a machine is apart adds
evidence, more if it is far apart, and every other reading takes some away; metrics of different families add up. What is
strong is said within seconds, what is weak must last.

Pure: `advance` takes a state and the distances of one reading, and returns the next state and the verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from robust_run.health.outliers.peers import Groups, group_by_role, medians, of_machines
from robust_run.health.outliers.types import SILENCE, OutlierVerdict

if TYPE_CHECKING:
    from robust_run.health.outliers.types import Array, Distances, OutlierLimits, Reading, WatchedFleet


MOST_GAIN = 0.25
"""Evidence of one reading: however far apart readings are, fewer than four accuse no machine."""
SETTLE_READINGS = 30
"""However far apart readings are, so many are needed before a machine is accused (none if `OutlierLimits.settle_s` is 0)."""
MOST_STRENGTH = 4.0
"""Farther apart than so many times what is needed makes no verdict any surer."""


@dataclass(frozen=True, slots=True)
class ContinuityState:
    """What is remembered between two readings."""

    groups: Groups
    above: Array
    """Machines x metrics: evidence, as a share of what suffices, that it is above its peers."""
    below: Array
    since_s: Array
    """Machines x metrics: when the evidence began; NaN where there is none."""
    silent_s: Array
    """Machines: for how long nothing has come."""
    accused: Array
    """Machines: 1 where it was said and is still so; said once."""
    said_s: Array
    """Machines: when it was said last."""
    readings: int = 0


def begin(fleet: WatchedFleet) -> ContinuityState:
    """Return the state before the first reading."""
    import numpy as np

    machines, metrics = len(fleet.machines), len(fleet.metrics)
    zero, none = np.zeros((machines, metrics)), np.full((machines, metrics), np.nan)
    one = np.zeros(machines)
    return ContinuityState(group_by_role(fleet.roles), zero, zero, none, one, one, one)


def advance(
    state: ContinuityState, fleet: WatchedFleet, reading: Reading, distances: Distances, limits: OutlierLimits
) -> tuple[ContinuityState, list[OutlierVerdict]]:
    """Return the next state, and a verdict for each machine that has just become a culprit."""
    import numpy as np

    settled = (
        state.readings >= min(limits.settle_s, SETTLE_READINGS) and state.readings * fleet.interval_s >= limits.settle_s
    )
    above, below = _evidence(state, fleet, distances, limits, settled)
    evidence = np.maximum(above, below)
    since = np.where(evidence > 0, np.fmin(state.since_s, reading.at_s), np.nan)
    silent_s = _silence(state, fleet, reading)
    total = _total(evidence, fleet, limits)
    guilty = (total >= 1) | (silent_s >= limits.silence_s) if settled else np.zeros(len(total), dtype=bool)
    # Once said, it is said again only after all evidence has gone.
    accused = np.where(guilty, 1.0, np.where((total < 0.25) & (silent_s == 0), 0.0, state.accused))
    news = guilty & (state.accused == 0)
    still = over = np.zeros(len(total), dtype=bool)
    if limits.repeat_s:
        still = (state.accused == 1) & (accused == 1) & (reading.at_s - state.said_s >= limits.repeat_s)
        over = (state.accused == 1) & (accused == 0)
    said = news | still | over
    said_s = np.where(said, reading.at_s, state.said_s)
    following = ContinuityState(state.groups, above, below, since, silent_s, accused, said_s, state.readings + 1)
    if not said.any():
        return following, []
    peers = of_machines(medians(reading.values, state.groups), state.groups)
    verdicts = []
    for row in np.flatnonzero(said):
        verdict = _verdict(int(row), following, fleet, reading, distances, limits, peers)
        how: Literal["new", "still", "over"] = "new" if news[row] else "still" if still[row] else "over"
        verdicts.append(verdict if how == "new" else msgspec.structs.replace(verdict, state=how))
    return following, verdicts


def _evidence(
    state: ContinuityState, fleet: WatchedFleet, distances: Distances, limits: OutlierLimits, settled: bool
) -> tuple[Array, Array]:
    import numpy as np

    spreads = distances.spreads
    known = ~np.isnan(spreads)
    strength = np.nan_to_num(np.abs(spreads) / limits.apart)
    apart = strength >= 1
    farthest = strength
    # Few are a fault, many are an event. One of few peers may be apart, also where that exceeds the share.
    if len(state.groups.sizes):
        member = state.groups.member
        many = np.where(member[:, :, None] >= 0, apart[member], False).sum(axis=1)
        allowed = np.maximum(1, limits.crowd_share * state.groups.sizes)[:, None]
        crowded = np.where(state.groups.group_of[:, None] >= 0, (many > allowed)[state.groups.group_of], True)
        apart &= ~crowded
        there = np.where(member[:, :, None] >= 0, strength[member], 0.0)
        farthest = of_machines(there.max(axis=1), state.groups)
    gains = apart & (strength >= limits.farthest_share * farthest)
    gain = np.where(gains, np.minimum(strength, limits.strongest), 0.0) * fleet.interval_s / limits.hold_factor
    result = []
    for evidence, side, holds in (
        (state.above, spreads > 0, [metric.up_hold_s for metric in fleet.metrics]),
        (state.below, spreads < 0, [metric.down_hold_s for metric in fleet.metrics]),
    ):
        added = evidence + np.minimum(gain / np.array(holds), MOST_GAIN)
        lost = np.where(evidence < 0.01, 0.0, evidence * limits.forget)
        kept = np.where(known & ~(side & (strength >= limits.near)), lost, evidence)
        changed = np.where(gains & side, added, kept)
        result.append(changed.clip(0, 3) if settled else np.zeros_like(evidence))
    return result[0], result[1]


def _silence(state: ContinuityState, fleet: WatchedFleet, reading: Reading) -> Array:
    import numpy as np

    heard = ~np.isnan(reading.values).all(axis=1)
    if heard.mean() < 0.5:  # nothing comes from anybody: that is our own deafness
        return state.silent_s
    return np.where(heard, 0.0, state.silent_s + fleet.interval_s)


def _total(evidence: Array, fleet: WatchedFleet, limits: OutlierLimits) -> Array:
    import numpy as np

    if not limits.families_add:
        return np.asarray(evidence.max(axis=1))
    families: dict[str, list[int]] = {}
    for column, metric in enumerate(fleet.metrics):
        families.setdefault(metric.family if metric.family != "other" else metric.name, []).append(column)
    return np.asarray(sum(evidence[:, columns].max(axis=1) for columns in families.values()))


def _verdict(
    row: int,
    state: ContinuityState,
    fleet: WatchedFleet,
    reading: Reading,
    distances: Distances,
    limits: OutlierLimits,
    peers: Array,
) -> OutlierVerdict:
    import numpy as np

    machine, role = fleet.machines[row], fleet.roles[row]
    if state.silent_s[row] >= limits.silence_s:
        quiet = float(state.silent_s[row])
        return OutlierVerdict(
            machine=machine, role=role, metric=SILENCE, direction="silent", since_s=reading.at_s - quiet,
            at_s=reading.at_s, confidence=round(1 - 0.5 ** (quiet / limits.silence_s), 3), spreads=0.0, value=None, peers=None,
        )  # fmt: skip
    evidence = np.maximum(state.above[row], state.below[row])
    column = int(evidence.argmax())
    direction: Literal["above", "below"] = "above" if state.above[row, column] >= state.below[row, column] else "below"
    others = [int(each) for each in np.argsort(-evidence, kind="stable") if each != column and evidence[each] >= 0.3]
    value, middle = float(reading.values[row, column]), float(peers[row, column])
    spreads = float(np.nan_to_num(distances.spreads[row, column]))
    witnesses = {fleet.metrics[each].family for each in others} - {fleet.metrics[column].family}
    strength = min(max(abs(spreads) / limits.apart, 1.0), MOST_STRENGTH) + len(witnesses)
    known = [each for each in (column, *others) if not np.isnan(reading.values[row, each] + peers[row, each])]
    began = state.since_s[row][[column, *others]]
    return OutlierVerdict(
        machine=machine,
        role=role,
        metric=fleet.metrics[column].name,
        direction=direction,
        since_s=reading.at_s if np.isnan(began).all() else float(np.nanmin(began)),
        at_s=reading.at_s,
        confidence=round(1 - 0.5**strength, 3),
        spreads=round(spreads, 1),
        value=None if np.isnan(value) else value,
        peers=None if np.isnan(middle) else middle,
        also=tuple(fleet.metrics[each].name for each in others),
        signs=tuple(
            (fleet.metrics[each].name, float(reading.values[row, each]), float(peers[row, each])) for each in known
        ),
    )
