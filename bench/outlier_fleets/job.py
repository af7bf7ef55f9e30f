"""A job's fleet as its nodes tell of themselves (`health.sensors.usage.SAID`): healthy hours, and planted degradations.

Levels, noise and harmless events are our choice, as in `settings`. Degradations are those that operators plant to try such a
thing: a CPU quota, half of the PCIe lanes, throttled clocks, a slow disk, ... A whole slow stage is a harmless one here: nodes of
one role are slow together, and none is the odd one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlier_fleets import settings as s
from outlier_fleets.fleet import add_harmless, healthy, log_uniform, lose_samples, make_fleet, phases
from outlier_fleets.settings import Harmless, Level
from outlier_fleets.types import Fault, Stretch
from robust_run.health.sensors.usage import SAID

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray


def _trouble(usual: float, most: float, phases: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 0.3)) -> Level:
    return Level(usual, most, 0.3, 0.3, 0.8, 0.0, phases, is_bursty=True, is_paced=False)


LEVELS: dict[str, Level] = {
    **{name: s.LEVELS[name] for name in ("cpu_percent", "memory_used_percent", "disk_bytes_per_s", "rdma_bytes_per_s")},
    "gpu_memory_percent": Level(78, 100, 0.08, 0.01, 0.004, 0.0, (1.0, 1.0, 0.9, 1.0), is_paced=False),
    "gpu_busy_percent": s.LEVELS["gpu_duty_percent"],
    "gpu_celsius": Level(64, 100, 0.02, 0.06, 0.01, 0.02, (1.0, 0.8, 0.9, 0.85), is_paced=False),
    "gpu_sm_clock_mhz": Level(1850, 1980, 0.01, 0.01, 0.008, 0.01, (1.0, 1.02, 1.02, 1.03), is_paced=False),
    "gpu_power_watts": s.LEVELS["gpu_power_watts"],
    "nvlink_bytes_per_s": s.LEVELS["nvlink_bytes_per_s"],
    "gpu_pcie_lanes": Level(16, 16, 0.0, 0.0, 0.0, 0.0, (1.0, 1.0, 1.0, 1.0), is_paced=False),
    "nvlink_errors_per_s": _trouble(0.01, 1e6),
    "rdma_retries_per_s": _trouble(2, 1e6),
    "rdma_congestion_per_s": _trouble(200, 1e7, (1.0, 2.0, 0.5, 0.05)),
    "rdma_wait_per_s": _trouble(2e5, 1e9, (1.0, 2.0, 0.5, 0.05)),
    "tcp_resent_per_s": _trouble(1.5, 1e5),
    "network_drops_per_s": _trouble(0.5, 1e6),
    "disk_wait_ms": _trouble(0.8, 1e5, (1.0, 8.0, 1.0, 1.0)),
    "cpu_pressure_percent": _trouble(2.0, 100, (1.0, 3.0, 1.0, 1.0)),
    "memory_pressure_percent": _trouble(0.02, 100),
    "io_pressure_percent": _trouble(0.5, 100, (1.0, 10.0, 1.0, 1.0)),
    "cpu_throttled_percent": _trouble(0.02, 100),
    "loader_wait_s": Level(0.02, 1e4, 0.2, 0.2, 0.6, 0.0, (1.0, 1.0, 1.0, 0.0), is_bursty=True, is_paced=False),
    "pfc_tx_packets_per_s": s.LEVELS["pfc_tx_packets_per_s"],
}
assert tuple(LEVELS) == SAID, "a node says something else of itself"
_COLUMN = {name: column for column, name in enumerate(SAID)}
_DRIVER = tuple(name for name in SAID if name.startswith(("gpu_", "nvlink_")))

HARMLESS = (
    *(
        Harmless(
            each.name,
            each.per_machine_hour,
            each.seconds,
            {
                name.replace("duty", "busy"): factor
                for name, factor in each.factors.items()
                if name.replace("duty", "busy") in LEVELS
            },
            each.rack_share,
        )
        for each in s.HARMLESS
    ),
    Harmless(
        "congestion", 0.5, (10, 600), {"rdma_congestion_per_s": (3, 100), "rdma_wait_per_s": (2, 50)}, rack_share=0.5
    ),
    Harmless("retries of a rack", 0.2, (5, 60), {"rdma_retries_per_s": (3, 100)}, rack_share=0.7),
    Harmless("uneven data", 1.0, (60, 900), {"gpu_power_watts": (0.94, 1.03), "gpu_memory_percent": (0.97, 1.1)}),
    Harmless(
        "backup",
        0.2,
        (30, 300),
        {"disk_bytes_per_s": (20, 300), "disk_wait_ms": (1.5, 5), "io_pressure_percent": (2, 6)},
    ),
    Harmless("warm rack", 0.05, (600, 3600), {"gpu_celsius": (1.01, 1.06)}, rack_share=0.8),
    Harmless("slow file of data", 1.0, (2, 20), {"loader_wait_s": (3, 50)}),
    Harmless("neighbour passes", 0.2, (10, 90), {"cpu_pressure_percent": (3, 12), "cpu_percent": (1.1, 1.6)}),
)


@dataclass(frozen=True, slots=True)
class Degradation:
    """What is planted on one node: by how much its metrics are multiplied, log-uniform."""

    name: str
    factors: Mapping[str, tuple[float, float]]
    slows_to: tuple[float, float] = (0.6, 0.97)
    """The whole job, by it."""


DEGRADATIONS = (
    Degradation("CPU quota", {"cpu_throttled_percent": (1000, 4500), "cpu_percent": (0.3, 0.7)}),
    Degradation("PCIe width", {"gpu_pcie_lanes": (0.5, 0.5), "gpu_busy_percent": (0.9, 1.0)}),
    Degradation(
        "thermal clock", {"gpu_sm_clock_mhz": (0.55, 0.85), "gpu_power_watts": (0.6, 0.85), "gpu_celsius": (1.1, 1.3)}
    ),
    Degradation("slow disk", {"disk_wait_ms": (30, 500), "io_pressure_percent": (20, 100)}),
    Degradation("slow loader", {"loader_wait_s": (20, 300), "gpu_busy_percent": (0.8, 1.0)}),
    Degradation(
        "slow link", {"rdma_retries_per_s": (100, 3000), "rdma_wait_per_s": (3, 30), "rdma_bytes_per_s": (0.5, 0.95)}
    ),
    Degradation("noisy neighbour", {"cpu_pressure_percent": (15, 40), "cpu_percent": (1.4, 2.2)}),
    Degradation("memory cgroup", {"memory_pressure_percent": (800, 4000), "io_pressure_percent": (5, 40)}),
    Degradation("NVLink errors", {"nvlink_errors_per_s": (1e3, 1e6), "nvlink_bytes_per_s": (0.5, 0.95)}),
    Degradation("lossy NIC", {"network_drops_per_s": (50, 3000), "tcp_resent_per_s": (50, 1000)}),
    Degradation("power cap", {"gpu_power_watts": (0.5, 0.75), "gpu_sm_clock_mhz": (0.55, 0.8)}),
    Degradation("hot GPU", {"gpu_celsius": (1.35, 1.5), "gpu_sm_clock_mhz": (0.75, 0.93)}),
)
ALONE_EVERY_S, ALONE_S = (1500, 4000), (60, 900)
"""The first node evaluates alone, while the others wait in a barrier."""


def make_job(
    seed: int, *, machines: int, degradation: str = "", seconds: int = 900
) -> tuple[Stretch, NDArray[np.bool_]]:
    """Return a stretch of a job's life, the same for the same arguments, and at which seconds it makes steps.

    `degradation`: a name of `DEGRADATIONS`, planted on one node between 300 and 500 s; empty: all are well.
    """
    random = np.random.default_rng((seed, machines, len(degradation)))
    fleet = make_fleet(machines, LEVELS)
    phase = phases(random, seconds, machines)
    onset = random.uniform(300, 500)
    planted = next((each for each in DEGRADATIONS if each.name == degradation), None)
    speed = np.ones(seconds)
    if planted is not None:
        speed[math.ceil(onset) :] = random.uniform(*planted.slows_to)
    values = healthy(random, fleet, phase, speed, LEVELS)
    steps = (phase == 0).mean(axis=1) > 0.5
    _evaluate_alone(random, values, steps)
    _slow_stage(random, fleet.roles, values)
    add_harmless(random, values, HARMLESS, LEVELS)
    fault = None
    if planted is not None:
        culprit = int(random.integers(machines))
        for name, factor in planted.factors.items():
            column, most = _COLUMN[name], LEVELS[name].most
            start = math.ceil(onset + random.uniform(*s.SIGN_DELAY_S))
            values[start:, culprit, column] = (values[start:, culprit, column] * log_uniform(random, factor)).clip(
                0, most
            )
        fault = Fault(degradation, fleet.machines[culprit], onset, float(seconds), tuple(planted.factors))
    lose_samples(random, values)
    return Stretch(fleet=fleet, values=values, fault=fault), steps


def _evaluate_alone(random: Generator, values: NDArray[np.float32], steps: NDArray[np.bool_]) -> None:
    start = random.uniform(0, ALONE_EVERY_S[1])
    while start < len(values):
        when = slice(math.ceil(start), math.ceil(start + random.uniform(*ALONE_S)))
        for name, first, others in (
            ("gpu_power_watts", 0.9, 0.45),
            ("gpu_busy_percent", 0.95, 1.0),
            ("rdma_bytes_per_s", 0.001, 0.001),
            ("nvlink_bytes_per_s", 0.5, 0.001),
            ("gpu_sm_clock_mhz", 0.97, 1.03),
            ("cpu_percent", 1.6, 0.9),
            ("disk_wait_ms", 4.0, 1.0),
            ("io_pressure_percent", 8.0, 1.0),
            ("cpu_pressure_percent", 6.0, 0.5),
        ):
            values[when, 0, _COLUMN[name]] *= first
            values[when, 1:, _COLUMN[name]] *= others
        steps[when] = False
        start += random.uniform(*ALONE_EVERY_S)


def _slow_stage(random: Generator, roles: tuple[str, ...], values: NDArray[np.float32]) -> None:
    """From some moment on all nodes of a stage have more to do than others."""
    rows = [row for row, role in enumerate(roles) if role == random.choice(sorted(set(roles)))]
    start = int(random.uniform(0, len(values)))
    values[start:, rows, _COLUMN["gpu_power_watts"]] *= 1.15
    values[start:, rows, _COLUMN["gpu_celsius"]] *= 1.05
