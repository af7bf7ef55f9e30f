"""What sensors' readings say as numbers by which nodes are compared: from a stub of the driver, and from trees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sensor_ground import StubDriver, Tree

from robust_run.health.metrics.reports import MetricPoint
from robust_run.health.metrics.watching import Said
from robust_run.health.outliers.metrics import metric_named
from robust_run.health.sensors.disk import DiskSample, parse_disks
from robust_run.health.sensors.links import infiniband
from robust_run.health.sensors.links.network import InterfaceLink, NetworkSample
from robust_run.health.sensors.numbers.measures import (
    of_disks,
    of_gpu_counters,
    of_gpus,
    of_network,
    of_ports,
    of_pressure,
    of_training,
)
from robust_run.health.sensors.numbers.telling import telling
from robust_run.health.sensors.nvml import Driver, GpuMoment, GpuSample
from robust_run.health.sensors.pressure import PressureSample
from robust_run.health.sensors.types import Sensor, SensorWorld
from robust_run.health.sensors.usage import METRICS, SAID, UNKNOWN, Measured, by_name, following


def test_gpus_tell_how_full_busy_and_hot_they_are_their_clock_power_and_traffic(driver: StubDriver) -> None:
    """The fullest, hottest and slowest, for one of them is enough to fail; the mean of what they do. A lost one says nothing."""
    driver.set(gib_0=40, gib_1=72, percent_0=100, percent_1=50, clock_0=1980, clock_1=1200, watts_0=700, watts_1=500)
    driver.set(nvlink_0=1000, nvlink_1=1000)
    asked = Driver(SensorWorld(nvml_library=driver.library))
    before = asked.moments()
    driver.set(nvlink_0=3000, nvlink_1=1000)
    after = asked.moments()
    assert of_gpus(before, after, 2.0) == {
        "gpu_memory_percent": 90.0,
        "gpu_busy_percent": 75.0,
        "gpu_celsius": 61,
        "gpu_sm_clock_mhz": 1200,
        "gpu_power_watts": 600.0,
        "nvlink_bytes_per_s": 2 * 2000 * 1024 / 2.0,
    }
    driver.set(lost_1=1, nvlink_0=0)
    alone = of_gpus(after, asked.moments(), 2.0)
    assert (alone["gpu_memory_percent"], alone["gpu_sm_clock_mhz"], alone["gpu_celsius"]) == (50.0, 1980, 60)
    assert "nvlink_bytes_per_s" not in alone, "the driver does not tell"
    assert of_gpus(None, GpuSample(gpus=(GpuMoment(gpu="GPU 0"),)), 0.0) == {}


def test_an_idle_gpu_says_nothing_of_its_clock() -> None:
    sample = GpuSample(gpus=(GpuMoment(gpu="GPU 0", sm_clock_mhz=345, busy_percent=0),))
    assert "gpu_sm_clock_mhz" not in of_gpus(None, sample, 0.0)


def test_the_narrowest_pcie_link_and_errors_on_nvlinks(driver: StubDriver) -> None:
    asked = Driver(SensorWorld(nvml_library=driver.library))
    before = asked.counters()
    driver.set(width_1=8, errors_1_0=600)
    assert of_gpu_counters(before, asked.counters(), 60.0) == {"gpu_pcie_lanes": 8, "nvlink_errors_per_s": 10.0}


def test_rdma_ports_tell_what_they_sent_again_and_how_long_they_waited(tree: Tree, world: SensorWorld) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"

    def now(retried: int, marked: int, waited: int) -> dict[str, infiniband.Port]:
        tree.put(f"{port}/state", "4: ACTIVE\n")
        tree.put(f"{port}/hw_counters/out_of_sequence", f"{retried}\n")
        tree.put(f"{port}/hw_counters/np_cnp_sent", f"{marked}\n")
        tree.put(f"{port}/counters/port_xmit_wait", f"{waited}\n")
        return infiniband.read(world)

    before, after = now(5, 0, 100), now(25, 10, 100)
    assert of_ports(before, after, 2.0) == {
        "rdma_retries_per_s": 10.0,
        "rdma_congestion_per_s": 5.0,
        "rdma_wait_per_s": 0.0,
    }
    assert of_ports(after, before, 2.0)["rdma_retries_per_s"] == 0.0, "a counter that was set back counts for nothing"
    tree.remove(f"{port}/hw_counters")
    assert set(of_ports(after, infiniband.read(world), 2.0)) == {"rdma_wait_per_s"}


def test_how_long_a_request_to_the_slowest_disk_takes_where_there_are_enough_of_them() -> None:
    def sample(*rows: str) -> DiskSample:
        return DiskSample(spaces={}, read_only={}, errors={}, disks=parse_disks("\n".join(rows)))

    row = "   8 0 {} {} 0 0 {} {} 0 0 {} 0 0 0 0"
    before = sample(row.format("sda", 0, 0, 0, 0), row.format("sdb", 0, 0, 0, 0))
    after = sample(row.format("sda", 50, 100, 50, 300), row.format("sdb", 1, 9000, 1, 9000))
    assert of_disks(before, after, 5.0) == {"disk_wait_ms": 4.0}
    assert of_disks(None, after, 5.0) == {}


def test_the_network_tells_what_was_lost_and_limits_tell_what_they_held_back() -> None:
    before = NetworkSample(links={"eth0": InterfaceLink(up=True, errors=1, dropped=2)}, segments=10, resent=3)
    after = NetworkSample(links={"eth0": InterfaceLink(up=True, errors=3, dropped=4)}, segments=50, resent=5)
    assert of_network(before, after, 2.0) == {"tcp_resent_per_s": 1.0, "network_drops_per_s": 2.0}
    was = PressureSample(waiting={}, throttled_s=1.0)
    now = PressureSample(waiting={"cpu some": 40.0, "io full": 5.0}, throttled_s=2.0)
    assert of_pressure(was, now, 4.0) == {
        "cpu_pressure_percent": 40.0,
        "io_pressure_percent": 5.0,
        "cpu_throttled_percent": 25.0,
    }


def test_the_loader_s_waits_are_those_of_the_rank_that_waits_longest() -> None:
    def said(*waits: float) -> Said:
        points = tuple(MetricPoint(at_s=0.0, step=None, values={"loss": 1.0, "data_s": wait}) for wait in waits)
        return Said(subject="rank", points=points)

    assert of_training(None, {"a": said(0.1, 0.3), "b": said(0.1), "c": said(float("nan"))}, 1.0) == {
        "loader_wait_s": pytest.approx(0.2)
    }
    assert of_training(None, {"a": Said(subject="rank", points=())}, 1.0) == {}


def test_what_a_node_says_keeps_its_places_and_ends_with_what_is_known() -> None:
    said = (1.0, 2.0, 3.0, 4.0, *following({"gpu_celsius": 61.0, "tcp_resent_per_s": 0.5, "no such": 1.0}))
    assert said[SAID.index("gpu_memory_percent")] == UNKNOWN
    assert len(said) == SAID.index("tcp_resent_per_s") + 1
    assert by_name(said) == {
        **dict(zip(METRICS, (1.0, 2.0, 3.0, 4.0), strict=True)),
        "gpu_celsius": 61.0,
        "tcp_resent_per_s": 0.5,
    }
    assert following({}) == ()


def test_a_fault_in_measuring_does_not_end_the_sensor() -> None:
    told: list[Measured] = []
    plain: Any = SimpleNamespace()
    disks = Sensor(
        name="disk",
        about="",
        interval_s=60.0,
        timeout_s=1.0,
        read=lambda _: None,
        judge=lambda state, *_: (state + 1, ()),
        start=0,
    )
    sensor = telling(disks, told.append)
    good = DiskSample(spaces={}, read_only={}, errors={}, disks={})
    assert sensor.judge(0, good, 1.0) == (1, ())
    assert sensor.judge(1, plain, 2.0) == (2, ())
    assert sensor.judge(2, good, 3.0) == (3, ())
    assert told == []


def test_all_that_nodes_say_is_known_to_robust_outliers() -> None:
    assert [name for name in SAID if metric_named(name).family == "other"] == []
