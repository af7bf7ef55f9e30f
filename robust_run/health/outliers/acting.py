"""What a node may be taken out for, or a job suspended to check it, where it stays apart from its peers. Pure.

Most of what sets a node apart is no fault of it. Knowledge before action:

- rank 0's node does more: it logs, saves, evaluates. CPU, memory, disk and network traffic above the peers are never acted on.
- Uneven data or experts, and a rank that is slow for any reason, make a node do less: power, load, traffic below the peers.
  Whose own time is longer is known better from the steps themselves (`--on-slow`), so nothing follows from that here.
- A crowded network makes the queues of some nodes longer: notes of congestion, requests for a pause and waits accuse nobody.
- Another batch of hardware runs hotter or slower from the first minute on: that is its habit, and never named.
- Slow clocks come from a heavier load as well (a cap on power): a few per cent are no fault.
- RDMA packets are sent again by whoever talks to a bad receiver, and to a receiver that is not ready: its peers, who are well.

What is left are signs that work alone does not make. Those which only a part of the node makes are certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Weight = Literal["certain", "doubtful", ""]

SLOW_CLOCK_SHARE = 0.9
"""Clocks are a sign below this share of the peers': caps on power make less of a difference between peers."""

_SIGNS: Mapping[str, tuple[Literal["above", "below"], Weight]] = {
    "gpu_pcie_lanes": ("below", "certain"),
    "gpu_sm_clock_mhz": ("below", "certain"),
    "nvlink_errors_per_s": ("above", "certain"),
    "rdma_retries_per_s": ("above", "doubtful"),
    "tcp_resent_per_s": ("above", "doubtful"),
    "network_drops_per_s": ("above", "doubtful"),
    "disk_wait_ms": ("above", "doubtful"),
    "io_pressure_percent": ("above", "doubtful"),
    "memory_pressure_percent": ("above", "doubtful"),
    "cpu_pressure_percent": ("above", "doubtful"),
    "cpu_throttled_percent": ("above", "doubtful"),
}


def weight_of(metric: str, value: float | None, peers: float | None) -> Weight:
    """Return how sure it is that a node is at fault which reads `value` where its peers read `peers`; empty: not a sign."""
    side, weight = _SIGNS.get(metric, ("above", ""))
    if value is None or peers is None or (value > peers) != (side == "above"):
        return ""
    if metric == "gpu_sm_clock_mhz" and value >= SLOW_CLOCK_SHARE * peers:
        return ""
    return weight


def rung_of(
    asked: str, metric: str, value: float | None, peers: float | None
) -> Literal["report", "diagnose", "evict"]:
    """Return what follows where `--on-outlier` says `asked`: at most that, and a doubtful sign only has the nodes checked."""
    weight = weight_of(metric, value, peers)
    if asked not in ("diagnose", "evict") or not weight:
        return "report"
    return "evict" if asked == "evict" and weight == "certain" else "diagnose"
