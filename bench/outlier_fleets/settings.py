"""Every number a generated fleet is made of.

Rates of fault kinds are the paper's (Minder, arXiv 2411.01791, Table 1: share of each in seven months of faults). How a fault
shows in each metric is ours, after what the paper describes: no metric shows every fault, some faults show in neighbours too,
a fault slows or stops the whole job within seconds. Levels, noise and harmless events are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["train", "checkpoint", "evaluate", "hang"]
PHASES: tuple[Phase, ...] = ("train", "checkpoint", "evaluate", "hang")


@dataclass(frozen=True, slots=True)
class Level:
    """What one metric of a healthy machine looks like."""

    usual: float
    """While training, in the metric's unit, averaged over the machine's devices."""
    most: float
    """Never above: 100 for percent, a link's capacity."""
    role_spread: float
    """Roles differ by about this share."""
    machine_spread: float
    """Machines of one role differ by about this share, for as long as they live."""
    noise: float
    """Standard deviation of the noise, as a share; correlated from second to second by `NOISE_MEMORY`."""
    step_swing: float
    """How much of it comes and goes within a training step."""
    phases: tuple[float, float, float, float]
    """Its multiple while training, writing a checkpoint, evaluating, and while the job hangs (NCCL spins: the GPU looks busy)."""
    is_bursty: bool = False
    """Noise multiplies (log-normal) instead of adding."""
    is_paced: bool = True
    """It falls when the job slows down."""


LEVELS: dict[str, Level] = {
    "pfc_tx_packets_per_s": Level(60, 5e6, 0.5, 0.4, 0.9, 0.3, (1.0, 3.0, 0.6, 0.05), is_bursty=True),
    "cpu_percent": Level(32, 100, 0.15, 0.06, 0.06, 0.08, (1.0, 1.5, 0.8, 0.95)),
    "gpu_duty_percent": Level(96, 100, 0.01, 0.005, 0.015, 0.03, (1.0, 0.2, 0.75, 1.03), is_paced=False),
    "gpu_power_watts": Level(550, 700, 0.06, 0.03, 0.03, 0.12, (1.0, 0.35, 0.65, 0.45)),
    "gpu_graphics_percent": Level(88, 100, 0.04, 0.01, 0.02, 0.08, (1.0, 0.2, 0.65, 0.95)),
    "gpu_tensor_percent": Level(45, 100, 0.08, 0.015, 0.04, 0.3, (1.0, 0.03, 0.5, 0.01)),
    "nvlink_bytes_per_s": Level(120e9, 450e9, 0.1, 0.02, 0.05, 0.4, (1.0, 0.05, 0.6, 0.01)),
    "rdma_bytes_per_s": Level(60e9, 200e9, 0.25, 0.03, 0.08, 0.5, (1.0, 0.6, 0.5, 0.01)),
    "memory_used_percent": Level(48, 100, 0.08, 0.03, 0.003, 0.0, (1.0, 1.12, 1.02, 1.0), is_paced=False),
    "disk_bytes_per_s": Level(4e6, 6e9, 0.2, 0.2, 0.7, 0.0, (1.0, 400.0, 1.0, 0.3), is_bursty=True, is_paced=False),
}
METRICS = tuple(LEVELS)
NOISE_MEMORY = 0.6
GPU = ("gpu_duty_percent", "gpu_power_watts", "gpu_graphics_percent", "gpu_tensor_percent")


@dataclass(frozen=True, slots=True)
class Harmless:
    """An event that must accuse nobody: it comes to single machines, or racks, and passes."""

    name: str
    per_machine_hour: float
    seconds: tuple[float, float]
    """Shortest and longest; log-uniform between."""
    factors: dict[str, tuple[float, float]]
    """Metric -> range of the multiple, log-uniform."""
    rack_share: float = 0.0
    """So often the whole rack has it at once."""


HARMLESS = (
    Harmless("cron job", 0.5, (5, 60), {"cpu_percent": (1.2, 2.5), "disk_bytes_per_s": (1, 50)}),
    Harmless("log flush", 1.0, (1, 20), {"disk_bytes_per_s": (5, 300)}),
    Harmless("input hiccup", 0.4, (2, 12), {**dict.fromkeys(GPU, (0.3, 0.95)), "cpu_percent": (0.7, 1.3)}),
    Harmless("PFC burst", 1.0, (2, 30), {"pfc_tx_packets_per_s": (5, 500)}, rack_share=0.3),
    Harmless(
        "link retry", 0.2, (1, 10), {"rdma_bytes_per_s": (0.4, 0.9), "pfc_tx_packets_per_s": (1, 30)}, rack_share=0.3
    ),
    Harmless("page cache drop", 0.2, (300, 3600), {"memory_used_percent": (0.93, 1.05)}),
    Harmless("thermal drift", 0.1, (300, 3600), {"gpu_power_watts": (0.97, 1.03)}),
    Harmless("clock dip", 0.1, (5, 20), {"gpu_power_watts": (0.8, 0.95), "gpu_tensor_percent": (0.85, 0.97)}),
)
RACK_MACHINES = 16
CHECKPOINT_EVERY_S = (240, 900)
CHECKPOINT_S = (8, 40)
EVALUATE_EVERY_S = (1200, 3600)
EVALUATE_S = (40, 150)
PHASE_LAG_S = 1.5
"""Machines enter and leave a phase about so much apart (exponential)."""
STRAGGLER_SHARE = 0.02
STRAGGLER_S = (4, 18)
"""So many machines leave a checkpoint so much later than the others."""
STEP_S = (2.0, 14.0)
MISSING_SHARE = 0.005
"""Of all single samples."""
GAPS_PER_MACHINE_HOUR = 0.5
GAP_S = (2, 10)
"""A collector that restarts: nothing from one machine for so long."""
LEADER_CPU = 1.35
"""The first machine of a job also logs and coordinates: its CPU is always higher."""


@dataclass(frozen=True, slots=True)
class Sign:
    """How a fault shows in one metric of the faulty machine, if it does."""

    chance: float
    factor: tuple[float, float]
    """Multiple of what a machine without the fault would read at that moment; log-uniform."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One row of the table of faults."""

    name: str
    share: float
    """Per cent of all faults, from the paper."""
    signs: dict[str, Sign]
    """`gpu` stands for all four views of the GPU, which fall together by one draw."""
    job: Literal["stops", "slows"]
    """What becomes of all the others."""
    spreads_to_neighbours: float = 0.0
    """Chance that one to three machines of the same role show it too, weaker (30 to 70 %) and 2 to 20 s later."""
    unreachable: float = 0.0
    """Chance that the machine's samples end with the fault."""


_DEAD_CPU, _DEAD_GPU, _FREED = (0.05, 0.5), (0.02, 0.4), (0.2, 0.7)
FAULTS = (
    FaultKind("ECC error", 38.9, {"cpu_percent": Sign(0.8, _DEAD_CPU), "gpu": Sign(0.65, _DEAD_GPU),
        "memory_used_percent": Sign(0.55, _FREED), "pfc_tx_packets_per_s": Sign(0.08, (10, 300)),
        "rdma_bytes_per_s": Sign(0.45, (0.05, 0.6))}, "stops"),
    FaultKind("PCIe downgrade", 6.6, {"pfc_tx_packets_per_s": Sign(1.0, (8, 1000)), "gpu": Sign(0.1, (0.7, 0.95)),
        "rdma_bytes_per_s": Sign(0.35, (0.5, 0.85))}, "slows", spreads_to_neighbours=0.3),
    FaultKind("NIC dropout", 5.7, {"cpu_percent": Sign(1.0, _DEAD_CPU), "gpu": Sign(1.0, _DEAD_GPU),
        "memory_used_percent": Sign(1.0, _FREED), "rdma_bytes_per_s": Sign(1.0, (0.01, 0.88))}, "stops"),
    FaultKind("GPU card drop", 2.0, {"cpu_percent": Sign(0.75, _DEAD_CPU), "gpu": Sign(0.7, (0.02, 0.875)),
        "rdma_bytes_per_s": Sign(0.5, (0.05, 0.6)), "memory_used_percent": Sign(0.25, _FREED)}, "stops"),
    FaultKind("NVLink error", 1.7, {"cpu_percent": Sign(0.7, _DEAD_CPU), "gpu": Sign(0.5, (0.1, 0.8)),
        "nvlink_bytes_per_s": Sign(0.9, (0.01, 0.7)), "rdma_bytes_per_s": Sign(0.3, (0.3, 0.8))}, "stops"),
    FaultKind("AOC error", 0.9, {"cpu_percent": Sign(0.25, _DEAD_CPU), "gpu": Sign(0.25, (0.5, 0.95)),
        "rdma_bytes_per_s": Sign(0.5, (0.3, 0.9)), "pfc_tx_packets_per_s": Sign(0.25, (5, 100))}, "slows"),
    FaultKind("CUDA execution error", 14.6, {"cpu_percent": Sign(0.77, _DEAD_CPU), "gpu": Sign(0.65, _DEAD_GPU),
        "memory_used_percent": Sign(0.6, _FREED), "rdma_bytes_per_s": Sign(0.35, (0.05, 0.6))}, "stops"),
    FaultKind("GPU execution error", 7.7, {"cpu_percent": Sign(0.6, (0.1, 0.8)), "gpu": Sign(0.6, (0.1, 0.85)),
        "memory_used_percent": Sign(0.3, _FREED), "rdma_bytes_per_s": Sign(0.3, (0.3, 0.8)),
        "pfc_tx_packets_per_s": Sign(0.1, (5, 100))}, "slows", spreads_to_neighbours=0.3),
    FaultKind("HDFS error", 5.7, {"cpu_percent": Sign(0.7, (0.2, 0.7)), "gpu": Sign(0.55, (0.1, 0.7)),
        "disk_bytes_per_s": Sign(0.2, (10, 200)), "memory_used_percent": Sign(0.3, (1.1, 1.5))}, "stops"),
    FaultKind("machine unreachable", 6.0, {"cpu_percent": Sign(0.8, (0.02, 0.3)), "gpu": Sign(0.7, _DEAD_GPU),
        "rdma_bytes_per_s": Sign(0.9, (0.001, 0.2)), "memory_used_percent": Sign(0.4, _FREED)}, "stops", unreachable=0.6),
    FaultKind("other", 10.2, {"cpu_percent": Sign(0.5, (0.2, 2.5)), "gpu": Sign(0.5, (0.3, 0.9)),
        "memory_used_percent": Sign(0.4, (0.5, 1.6)), "pfc_tx_packets_per_s": Sign(0.2, (5, 200)),
        "rdma_bytes_per_s": Sign(0.3, (0.3, 0.9))}, "slows"),
)  # fmt: skip
SIGN_DELAY_S = (0.0, 8.0)
"""Each sign of a fault begins so long after its onset."""
REACTION_S = (2.0, 40.0)
"""So long after the onset the rest of the job stops or slows."""
SLOWED_TO = (0.45, 0.9)
VISIBLE_S = (60.0, 1800.0)
"""From onset to the end of the job, log-uniform. Minder's Figure: minutes, mostly more than five."""
