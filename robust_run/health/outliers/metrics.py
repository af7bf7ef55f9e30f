"""The metrics that outliers knows by name, the most telling ones first, and what it assumes of any other.

The choice follows Minder (arXiv 2411.01791, section 4.3): PFC packets, CPU, four views of the GPU, NVLink, plus RDMA throughput,
memory and disk. Holds were tuned on generated fleets (docs/outliers.md).
"""

from __future__ import annotations

from robust_run.health.outliers.types import Family, Metric


def _gpu(name: str, *, is_rate: bool = False, least_spread: float = 0.02) -> Metric:
    return Metric(
        name=name, family="accelerator", is_rate=is_rate, least_spread=least_spread,
        up_hold_s=240, down_hold_s=52,
    )  # fmt: skip


def _trouble(name: str, family: Family, *, least_spread: float = 0.5, up_hold_s: float = 120) -> Metric:
    """What is next to nothing on a healthy machine. It comes in bursts; only much of it, and for long, is a sign; less never is.

    Compared as a logarithm, a per cent too: from 0 it takes some 7 to be apart, from 10 some 80.
    """
    return Metric(
        name=name, family=family, is_rate=True, least_spread=least_spread, smooth_s=15, habit_s=900,
        up_hold_s=up_hold_s, down_hold_s=600,
    )  # fmt: skip


KNOWN = (
    Metric(
        name="pfc_tx_packets_per_s", family="network", is_rate=True, least_spread=0.25, smooth_s=15, up_hold_s=80,
        down_hold_s=120,
    ),
    Metric(
        name="cpu_percent", family="processor", least_spread=0.06, up_hold_s=130, down_hold_s=20
    ),
    _gpu("gpu_duty_percent"),
    _gpu("gpu_busy_percent"),
    _gpu("gpu_power_watts"),
    _gpu("gpu_sm_clock_mhz", least_spread=0.03),
    _gpu("gpu_pcie_lanes", least_spread=0.1),
    _gpu("gpu_graphics_percent"),
    _gpu("gpu_tensor_percent"),
    _gpu("nvlink_bytes_per_s", is_rate=True, least_spread=0.1),
    Metric(name="rdma_bytes_per_s", family="network", is_rate=True, least_spread=0.1, up_hold_s=240, down_hold_s=52),
    Metric(
        name="gpu_memory_percent", family="accelerator", least_spread=0.06, up_hold_s=130, down_hold_s=52
    ),
    Metric(name="gpu_celsius", family="heat", least_spread=0.06, smooth_s=15, up_hold_s=130, down_hold_s=300),
    Metric(
        name="memory_used_percent", family="memory", least_spread=0.04, up_hold_s=30, down_hold_s=16
    ),
    _trouble("memory_pressure_percent", "memory"),
    _trouble("cpu_pressure_percent", "processor"),
    _trouble("cpu_throttled_percent", "processor"),
    _trouble("nvlink_errors_per_s", "accelerator"),
    _trouble("rdma_retries_per_s", "network", least_spread=0.7),
    _trouble("rdma_congestion_per_s", "network", least_spread=0.7, up_hold_s=900),
    _trouble("rdma_wait_per_s", "network", least_spread=0.7, up_hold_s=900),
    _trouble("tcp_resent_per_s", "network", least_spread=0.7),
    _trouble("network_drops_per_s", "network", least_spread=0.7),
    _trouble("disk_wait_ms", "storage"),
    _trouble("io_pressure_percent", "storage"),
    Metric(
        name="loader_wait_s", family="loader", is_rate=True, least_spread=0.05, smooth_s=15, up_hold_s=80, down_hold_s=600
    ),
    Metric(
        name="disk_bytes_per_s", family="storage", is_rate=True, least_spread=0.5, smooth_s=15, up_hold_s=600,
        down_hold_s=300,
    ),
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in KNOWN}
_RATE_ENDINGS = ("_per_s", "_per_second", "_rate", "_bytes", "_packets")


def metric_named(name: str) -> Metric:
    """Return what is known of a metric; for an unknown name, cautious assumptions."""
    known = _BY_NAME.get(name)
    if known is not None:
        return known
    is_rate = name.lower().endswith(_RATE_ENDINGS)
    return Metric(name=name, is_rate=is_rate, least_spread=0.3 if is_rate else 0.02, up_hold_s=120, down_hold_s=80)
