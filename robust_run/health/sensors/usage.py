"""What a node does, as a few numbers a second, to be compared with its peers: CPU, memory, disks, network.

Reads /proc and sysfs, which answer at once, also while something else hangs; 0.1 ms on a small machine, 1 ms on one of 200 cores.
What is not read here comes from the sensors (`health.sensors.numbers.measures`): they have read it already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.health.sensors.files import number, text_or_none
from robust_run.health.sensors.types import SensorWorld

METRICS = ("cpu_percent", "memory_used_percent", "disk_bytes_per_s", "rdma_bytes_per_s")
"""Names of the numbers, as `robust outliers` knows them. The last is of all network devices where there is no RDMA."""
GPU_METRICS = ("gpu_memory_percent", "gpu_busy_percent", "gpu_celsius")
"""What follows them: the fullest GPU of the node, the mean of all, the hottest."""
SENSED = (
    "gpu_sm_clock_mhz",
    "gpu_power_watts",
    "nvlink_bytes_per_s",
    "gpu_pcie_lanes",
    "nvlink_errors_per_s",
    "rdma_retries_per_s",
    "rdma_congestion_per_s",
    "rdma_wait_per_s",
    "tcp_resent_per_s",
    "network_drops_per_s",
    "disk_wait_ms",
    "cpu_pressure_percent",
    "memory_pressure_percent",
    "io_pressure_percent",
    "cpu_throttled_percent",
    "loader_wait_s",
    "pfc_tx_packets_per_s",
)
"""And after those: what else the sensors read. New ones are added at the end: nodes of other versions say fewer."""
SAID = (*METRICS, *GPU_METRICS, *SENSED)
"""Names of all that a node says of itself, in this order; what is unknown at the end is left out."""
UNKNOWN = -1.0
"""Stands for a number that nothing tells."""
#: Of /proc/diskstats, also of disks whose own sectors are larger.
_SECTOR_BYTES = 512
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr")
#: InfiniBand counts data in words of so many bytes.
_WORD_BYTES = 4
_MOST = 1024


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """What one sensor's newest reading says."""

    values: Mapping[str, float]
    fresh_s: float
    """For so long it may be taken for what is: a little more than the time between two readings."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What has been counted since the node was started."""

    at_s: float
    busy: float
    """Ticks of all CPUs in which they worked."""
    ticks: float
    memory_used_percent: float
    disk_bytes: int
    network_bytes: int


def read(world: SensorWorld, now_s: float) -> Counters:
    """Return the counters. What cannot be read counts as zero."""
    busy, ticks = _cpu(text_or_none(f"{world.proc}/stat") or "")
    return Counters(
        at_s=now_s,
        busy=busy,
        ticks=ticks,
        memory_used_percent=_memory(text_or_none(f"{world.proc}/meminfo") or ""),
        disk_bytes=_disks(text_or_none(f"{world.proc}/diskstats") or "", _names(f"{world.sys}/block")),
        network_bytes=_network(world),
    )


def between(before: Counters, after: Counters) -> tuple[float, ...]:
    """Return the numbers of METRICS for the time between two readings; empty if there was none. Pure."""
    passed_s, ticks = after.at_s - before.at_s, after.ticks - before.ticks
    if passed_s <= 0 or ticks <= 0:
        return ()
    return (
        _rounded(100.0 * max(0.0, after.busy - before.busy) / ticks),
        _rounded(after.memory_used_percent),
        _rounded(max(0, after.disk_bytes - before.disk_bytes) / passed_s),
        _rounded(max(0, after.network_bytes - before.network_bytes) / passed_s),
    )


def following(measured: Mapping[str, float]) -> tuple[float, ...]:
    """Return what follows `METRICS` in what a node says, from what its sensors measured. Pure."""
    said = [_rounded(measured[name]) if name in measured else UNKNOWN for name in SAID[len(METRICS) :]]
    while said and said[-1] == UNKNOWN:
        said.pop()
    return tuple(said)


def by_name(said: Sequence[float]) -> dict[str, float]:
    """Return the numbers that a node says of itself by name, without those that nothing tells. Pure."""
    return {name: value for name, value in zip(SAID, said, strict=False) if value != UNKNOWN}


def _rounded(value: float) -> float:
    """Four digits tell peers apart."""
    return float(f"{value:.4g}")


def _cpu(text: str) -> tuple[float, float]:
    row = text.partition("\n")[0].split()
    if row[:1] != ["cpu"]:
        return 0.0, 0.0
    ticks = [float(word) for word in row[1:9] if word.isdecimal()]
    idle = sum(ticks[3:5])
    return sum(ticks) - idle, sum(ticks)


def _memory(text: str) -> float:
    found: dict[str, float] = {}
    for line in text.split("\n"):
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            word = rest.split()[:1]
            found[name] = float(word[0]) if word and word[0].isdecimal() else 0.0
    total = found.get("MemTotal", 0.0)
    return 100.0 * (total - found.get("MemAvailable", total)) / total if total else 0.0


def _disks(text: str, whole: set[str]) -> int:
    """Sum what whole disks moved: partitions and layers above them count the same bytes again."""
    sectors = 0
    for line in text.split("\n"):
        row = line.split()
        if len(row) > 9 and row[2] in whole and not row[2].startswith(_NO_DISKS):
            sectors += sum(int(word) for word in (row[5], row[9]) if word.isdecimal())
    return sectors * _SECTOR_BYTES


def _network(world: SensorWorld) -> int:
    ports = _ports(f"{world.sys}/class/infiniband")
    if ports:
        return _WORD_BYTES * sum(
            number(f"{port}/counters/port_{way}_data") or 0 for port in ports for way in ("xmit", "rcv")
        )
    moved = 0
    for line in (text_or_none(f"{world.process}/net/dev") or "").split("\n"):
        name, colon, rest = line.partition(":")
        row = rest.split()
        if colon and name.strip() != "lo" and len(row) > 8:
            moved += sum(int(word) for word in (row[0], row[8]) if word.isdecimal())
    return moved


def _ports(root: str) -> list[str]:
    return [
        f"{root}/{device}/ports/{port}" for device in sorted(_names(root)) for port in _names(f"{root}/{device}/ports")
    ]


def _names(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder)[:_MOST])
    except OSError:
        return set()
