"""The metrics that outliers knows by name, the most telling ones first, and what it assumes of any other.

The choice follows Minder (arXiv 2411.01791, section 4.3): PFC packets, CPU, four views of the GPU, NVLink, plus RDMA throughput,
memory and disk. Holds were tuned on generated fleets (docs/outliers.md).
"""

from __future__ import annotations

from robust_run.health.outliers.types import Metric


def _gpu(name: str, *, is_rate: bool = False, least_spread: float = 0.02) -> Metric:
    return Metric(
        name=name, family="accelerator", is_rate=is_rate, least_spread=least_spread, up_hold_s=80, down_hold_s=52
    )


KNOWN = (
    Metric(
        name="pfc_tx_packets_per_s", family="network", is_rate=True, least_spread=0.25, smooth_s=15, up_hold_s=80,
        down_hold_s=120,
    ),
    Metric(name="cpu_percent", family="processor", least_spread=0.06, up_hold_s=130, down_hold_s=20),
    _gpu("gpu_duty_percent"),
    _gpu("gpu_power_watts"),
    _gpu("gpu_graphics_percent"),
    _gpu("gpu_tensor_percent"),
    _gpu("nvlink_bytes_per_s", is_rate=True, least_spread=0.1),
    Metric(name="rdma_bytes_per_s", family="network", is_rate=True, least_spread=0.1, up_hold_s=80, down_hold_s=52),
    Metric(name="memory_used_percent", family="memory", least_spread=0.04, up_hold_s=30, down_hold_s=16),
    Metric(
        name="disk_bytes_per_s", family="storage", is_rate=True, least_spread=0.5, smooth_s=15, up_hold_s=140,
        down_hold_s=140,
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
