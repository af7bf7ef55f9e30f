"""What a generator hands over: a stretch of a fleet's life, and the truth about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust_run.health.outliers.types import WatchedFleet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to one machine."""

    kind: str
    machine: str
    onset_s: float
    end_s: float
    """When the job ends of it."""
    signs: tuple[str, ...]
    """Metrics that show it; none at all is possible, and then nobody can find it."""
    neighbours: tuple[str, ...] = ()
    """Machines that show it too and are innocent."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Readings of one fleet, one a second."""

    fleet: WatchedFleet
    values: NDArray[np.float32]
    """Seconds x machines x metrics; NaN where a sample is missing."""
    fault: Fault | None
