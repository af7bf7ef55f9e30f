"""What sensors have read, as numbers by which nodes are compared (`usage.SENSED`): no file and no driver is read twice for it.

Each function takes what its sensor read before (None: nothing) and now, and the time between. Pure. What is not known is left
out: a number that is not there accuses nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from robust_run.health.metrics.watching import Said
from robust_run.health.sensors.disk import DiskSample
from robust_run.health.sensors.links.infiniband import Port
from robust_run.health.sensors.links.network import NetworkSample
from robust_run.health.sensors.nvml import GpuCounters, GpuSample
from robust_run.health.sensors.pressure import PressureSample

Numbers = dict[str, float]
#: A GPU that does less says nothing of its clock: an idle one lowers it by itself.
BUSY_PERCENT = 50
#: A disk with fewer requests between two readings says nothing of how long one takes.
FEWEST_REQUESTS = 20
#: What scripts call the time that a rank waited for its next batch, in seconds, where they report it.
LOADER_WAITS = ("data_wait_s", "data_s", "data_time", "data_loading_s", "loader_s", "dataloader_s")


def of_gpus(before: GpuSample | None, sample: GpuSample, passed_s: float) -> Numbers:
    """How full the fullest GPU is, how busy all in the mean, how hot the hottest; the slowest clock; power; NVLink traffic."""
    alive = [gpu for gpu in sample.gpus if not gpu.lost]
    full = [
        100.0 * gpu.memory_used_bytes / gpu.memory_bytes
        for gpu in alive
        if gpu.memory_used_bytes is not None and gpu.memory_bytes
    ]
    busy = [gpu.busy_percent for gpu in alive if gpu.busy_percent is not None]
    hot = [gpu.celsius for gpu in alive if gpu.celsius is not None]
    clocks = [
        gpu.sm_clock_mhz for gpu in alive if gpu.sm_clock_mhz is not None and (gpu.busy_percent or 0) >= BUSY_PERCENT
    ]
    watts = [gpu.watts for gpu in alive if gpu.watts is not None]
    found: Numbers = {}
    if full:
        found["gpu_memory_percent"] = max(full)
    if busy:
        found["gpu_busy_percent"] = sum(busy) / len(busy)
    if hot:
        found["gpu_celsius"] = max(hot)
    if clocks:
        found["gpu_sm_clock_mhz"] = min(clocks)
    if watts:
        found["gpu_power_watts"] = sum(watts) / len(watts)
    if before is not None:
        old = {gpu.gpu: gpu.nvlink_bytes for gpu in before.gpus}
        moved = _rate(((old.get(gpu.gpu), gpu.nvlink_bytes) for gpu in alive), passed_s)
        if moved is not None:
            found["nvlink_bytes_per_s"] = moved
    return found


def of_gpu_counters(
    before: tuple[GpuCounters, ...] | None, sample: tuple[GpuCounters, ...], passed_s: float
) -> Numbers:
    """The narrowest PCIe link; errors on NVLinks."""
    alive = [gpu for gpu in sample if not gpu.lost]
    lanes = [gpu.pcie_width for gpu in alive if gpu.pcie_width]
    found: Numbers = {"gpu_pcie_lanes": min(lanes)} if lanes else {}
    old = {gpu.gpu: _errors(gpu) for gpu in before or ()}
    errors = _rate(((old.get(gpu.gpu), _errors(gpu)) for gpu in alive if gpu.links), passed_s)
    if errors is not None:
        found["nvlink_errors_per_s"] = errors
    return found


def _errors(gpu: GpuCounters) -> int:
    return sum(sum(errors) for _, errors in gpu.links)


def of_ports(before: Mapping[str, Port] | None, sample: Mapping[str, Port], passed_s: float) -> Numbers:
    """What all RDMA ports together sent again, were told of congestion, and waited."""
    found: Numbers = {}
    for name, field in (
        ("rdma_retries_per_s", "retries"),
        ("rdma_congestion_per_s", "congestion"),
        ("rdma_wait_per_s", "waits"),
    ):
        pairs = ((getattr((before or {}).get(port), field, None), getattr(new, field)) for port, new in sample.items())
        rate = _rate(pairs, passed_s)
        if rate is not None:
            found[name] = rate
    return found


def of_network(before: NetworkSample | None, sample: NetworkSample, passed_s: float) -> Numbers:
    """TCP segments sent again; packets that interfaces dropped or found broken; frames that asked their peers to pause."""
    if before is None:
        return {}
    resent = _rate(((before.resent, sample.resent),), passed_s)
    old = {name: link.errors + link.dropped for name, link in before.links.items()}
    lost = _rate(((old.get(name), link.errors + link.dropped) for name, link in sample.links.items()), passed_s)
    paused = {name: link.pauses.sent for name, link in before.links.items() if link.pauses is not None}
    now = ((paused.get(name), link.pauses.sent) for name, link in sample.links.items() if link.pauses is not None)
    rates = {"tcp_resent_per_s": resent, "network_drops_per_s": lost, "pfc_tx_packets_per_s": _rate(now, passed_s)}
    return {name: rate for name, rate in rates.items() if rate is not None}


def of_disks(before: DiskSample | None, sample: DiskSample, passed_s: float) -> Numbers:
    """How long a request to the slowest disk takes."""
    del passed_s
    waits = []
    for name, disk in sample.disks.items():
        old = before.disks.get(name) if before is not None else None
        done = disk.done - old.done if old is not None else 0
        if old is not None and done >= FEWEST_REQUESTS:
            waits.append(max(0, disk.waited_ms - old.waited_ms) / done)
    return {"disk_wait_ms": max(waits)} if waits else {}


def of_pressure(before: PressureSample | None, sample: PressureSample, passed_s: float) -> Numbers:
    """How short CPU, memory and I/O are; in how much of the time a limit held the job back."""
    rows = (
        ("cpu_pressure_percent", "cpu some"),
        ("memory_pressure_percent", "memory full"),
        ("io_pressure_percent", "io full"),
    )
    found = {name: sample.waiting[key] for name, key in rows if key in sample.waiting}
    if before is not None and before.throttled_s is not None and sample.throttled_s is not None and passed_s > 0:
        found["cpu_throttled_percent"] = 100.0 * max(0.0, sample.throttled_s - before.throttled_s) / passed_s
    return found


def of_training(before: object, sample: Mapping[str, Said], passed_s: float) -> Numbers:
    """How long the rank that waits longest waits for its next batch, where the script reports that."""
    del before, passed_s
    waits = []
    for said in sample.values():
        own = [point.values[name] for point in said.points for name in LOADER_WAITS if name in point.values]
        own = [value for value in own if 0.0 <= value < 1e6]
        if own:
            waits.append(sum(own) / len(own))
    return {"loader_wait_s": max(waits)} if waits else {}


def _rate(pairs: Iterable[tuple[int | None, int | None]], passed_s: float) -> float | None:
    """Return by how much counters grew in a second, those together that are known twice; None: none is.

    One that was set back (a driver that was loaded again) counts for nothing.
    """
    grown = [max(0, new - old) for old, new in pairs if old is not None and new is not None]
    return sum(grown) / passed_s if grown and passed_s > 0 else None


MEASURES: Mapping[str, Callable[[Any, Any, float], Numbers]] = {
    "gpu": of_gpus,
    "gpu_memory": of_gpu_counters,
    "infiniband": of_ports,
    "network": of_network,
    "disk": of_disks,
    "pressure": of_pressure,
    "training": of_training,
}
"""By the name of the sensor."""
