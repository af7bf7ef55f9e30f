"""The words of outliers: what a metric is, one reading of the whole fleet, how far each machine is from its peers, a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    """Most often machines x metrics; NaN where nothing is known."""
    Indices = NDArray[np.intp]

Family = Literal["processor", "accelerator", "heat", "network", "memory", "storage", "loader", "other"]
"""Metrics of one family follow one cause: they vouch for each other no more than once."""

SILENCE = "silence"
"""Named in a verdict instead of a metric: the machine reports nothing while its peers do."""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One counter of a machine, and what is to be known of it before machines can be compared."""

    name: str
    """The column in files and streams."""
    family: Family = "other"
    is_rate: bool = False
    """True for counts per second that vary by factors, not by amounts (packets, bytes): compared as logarithms."""
    least_spread: float = 0.02
    """Differences below this are nothing, however alike the peers are: share of the role's usual value, or, for a rate, of
    its logarithm's unit."""
    smooth_s: float = 3.0
    """Time constant of the average over a few readings; longer where a counter comes in bursts."""
    habit_s: float = 180.0
    """Time constant of how a machine usually stands to its peers; longer where a fault must last before it is told."""
    up_hold_s: float = 80.0
    """How long a machine must be barely apart, above its peers, before it is accused."""
    down_hold_s: float = 52.0
    """The same below its peers. Most faults take something away, most harmless events add something: the holds differ."""


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """Who is watched, by what. Rows of all arrays are machines in this order, columns are metrics."""

    machines: tuple[str, ...]
    roles: tuple[str, ...]
    """For each machine: what it does in the job (a pipeline stage, say). Peers are the machines of one role."""
    metrics: tuple[Metric, ...]
    interval_s: float = 1.0
    """Between two readings."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All metrics of all machines at one moment."""

    at_s: float
    """Any clock that only goes forward, the same for all machines."""
    values: Array


@dataclass(frozen=True, slots=True)
class Distances:
    """What a detector says of one reading."""

    spreads: Array
    """Machines x metrics: how far from its peers, in units of what is usual among them; the sign is the direction. 0 where
    nothing can be said, NaN where nothing was read."""


class OutlierLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When distance becomes an accusation."""

    apart: float = 4.0
    """Spreads from which on a machine counts as apart from its peers."""
    near: float = 0.6
    """Down to this share of `apart` evidence neither grows nor fades: what hovers around a limit is not forgotten."""
    strongest: float = 2.0
    """A machine that is very far apart is accused up to so many times faster than one that is barely apart."""
    forget: float = 0.85
    """What is left of the evidence after a reading in which the machine was not apart."""
    hold_factor: float = 1.0
    """Scales the holds of all metrics."""
    families_add: bool = False
    """Evidence of different families adds up; False: the metric with the most evidence decides alone."""
    crowd_share: float = 0.25
    """If more than this share of a role is apart in one metric at the same time, the event is not a machine's."""
    farthest_share: float = 0.75
    """Of several machines of a role that are apart in one metric, only those gather evidence that are at least so far apart as
    this share of the farthest: a fault often shows in neighbours too, but weaker."""
    silence_s: float = 20.0
    """A machine from which nothing comes for so long, while half of the fleet reports, is accused of it."""
    settle_s: float = 150.0
    """At the beginning no machine is accused for so long: what is usual is learnt in that time."""
    repeat_s: float = 0.0
    """A machine that is still apart is said again so often, and once more when it no longer is; 0: each is said once only."""


class OutlierVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One machine is apart from its peers, and has been for long enough."""

    machine: str
    role: str
    metric: str
    """The metric with the most evidence, or `silence`."""
    direction: Literal["above", "below", "silent"]
    since_s: float
    """When it began, by the clock of the readings."""
    at_s: float
    """When it was said."""
    confidence: float
    """0.5 for a machine that is barely apart in one metric; what is missing to 1 halves with each further `apart` of distance, up
    to four, and with each other family of metrics that agrees. A measure of evidence, not a measured probability."""
    spreads: float
    """How far from its peers at the moment of the verdict, in units of what is usual among them."""
    value: float | None
    """What the machine reads, in the metric's own unit; None if silent."""
    peers: float | None
    """The median of its peers, in the same unit."""
    also: tuple[str, ...] = ()
    """Other metrics in which it is apart as well."""
    state: Literal["new", "still", "over"] = "new"
    """Whether it has just become apart, is so still, or no longer is (see `OutlierLimits.repeat_s`)."""
    signs: tuple[tuple[str, float, float], ...] = ()
    """All metrics in which it is apart: name, what it reads, the median of its peers. Most evidence first."""
