"""Which checks fit a symptom. Pure.

Checks that cannot show the fault cost time in which no node trains, and each has its own false alarms. Where nothing is known
of the fault, all are made.
"""

from __future__ import annotations

from robust_run.health.checks.types import CheckName
from robust_run.health.ladder.types import FailureKind

#: By kind of failure; what is not here has all checks made.
BY_KIND: dict[FailureKind, tuple[CheckName, ...]] = {
    # Who does not come to a collective hangs in a device or in a link.
    "hang": ("compute", "exchange", "neighbours", "allreduce"),
    # Numbers are wrong: what computes them, and what carries them, bit by bit.
    "nan": ("compute", "model", "memory", "exchange", "neighbours", "allreduce"),
    "jump": ("compute", "model", "memory", "exchange", "neighbours", "allreduce"),
    # Everything that has a rate.
    "slow": ("compute", "memory", "disk", "exchange", "neighbours", "allreduce"),
}
#: By the beginning of what a sensor said.
BY_SIGN: dict[str, tuple[CheckName, ...]] = {
    "gpu": ("compute", "model", "exchange"),
    "gpu_memory": ("compute", "model", "exchange"),
    "hardware.pcie": ("compute", "model", "disk", "exchange", "neighbours"),
    "network": ("neighbours", "allreduce"),
    "disk": ("disk",),
    "fsync": ("disk",),
    "mount": ("disk",),
    "outlier.stays": ("compute", "memory", "disk", "exchange", "neighbours", "allreduce"),
    "outlier.stays.gpu_pcie_lanes": ("compute", "model", "exchange"),
    "outlier.stays.gpu_sm_clock_mhz": ("compute", "model"),
    "outlier.stays.nvlink_errors_per_s": ("exchange",),
    "outlier.stays.rdma_retries_per_s": ("neighbours", "allreduce"),
    "outlier.stays.tcp_resent_per_s": ("neighbours", "allreduce"),
    "outlier.stays.network_drops_per_s": ("neighbours", "allreduce"),
    "outlier.stays.disk_wait_ms": ("disk",),
    "outlier.stays.io_pressure_percent": ("disk",),
    "kernel": ("compute", "memory", "disk"),
}


def checks_for(kind: FailureKind, sign: str = "") -> tuple[CheckName, ...]:
    """Return the checks for a failure, or for what a sensor said (its event's name); empty: all."""
    while kind == "health" and sign:
        if sign in BY_SIGN:
            return BY_SIGN[sign]
        sign = sign.rpartition(".")[0]
    return BY_KIND.get(kind, ())
