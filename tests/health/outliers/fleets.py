"""Fleets for tests: simple ones, whose right verdict is plain to see."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from robust_run.health.outliers.metrics import metric_named
from robust_run.health.outliers.types import OutlierLimits, OutlierVerdict, Reading, WatchedFleet
from robust_run.health.outliers.watch import default_watch

METRICS = ("cpu_percent", "gpu_power_watts", "memory_used_percent", "pfc_tx_packets_per_s")
LEVELS = np.array([30.0, 500.0, 50.0, 100.0])
CPU, POWER, MEMORY, PFC = range(4)
ONSET = 200

Values = NDArray[np.float64]


def fleet_of(machines: int, roles: int = 1) -> WatchedFleet:
    return WatchedFleet(
        machines=tuple(f"node-{number}" for number in range(machines)),
        roles=tuple(f"role-{number % roles}" for number in range(machines)),
        metrics=tuple(metric_named(name) for name in METRICS),
    )


def calm(machines: int, seconds: int = 320, seed: int = 0) -> Values:
    """All alike, two per cent of noise."""
    noise = np.random.default_rng(seed).normal(0, 0.02, (seconds, machines, len(METRICS)))
    return np.asarray(LEVELS * (1 + noise))


def verdicts(
    fleet: WatchedFleet, values: Iterable[Values], limits: OutlierLimits | None = None
) -> list[OutlierVerdict]:
    watch = default_watch(fleet, limits)
    state = watch.begin()
    said: list[OutlierVerdict] = []
    for second, each in enumerate(values):
        state, news = watch.step(state, Reading(float(second), each))
        said += news
    return said
