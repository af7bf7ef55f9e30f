"""What a node does in a second, from trees that look like /proc and /sys, and from this machine."""

from __future__ import annotations

import os
import time

from sensor_ground import Tree

from robust_run.health.outliers.metrics import metric_named
from robust_run.health.sensors.types import SensorWorld
from robust_run.health.sensors.usage import METRICS, Counters, between, read

DISKS = "   8 0 sda 1 0 {0} 0 1 0 {0} 0 0 0 0\n   8 1 sda1 1 0 {0} 0 1 0 {0} 0 0 0 0\n 253 0 dm-0 1 0 {0} 0 1 0 {0} 0 0 0 0\n"
NET = "Inter-| Receive\n face |bytes\n    lo: 900 0 0 0 0 0 0 0 900 0\n  eth0: {0} 0 0 0 0 0 0 0 {0} 0\n"


def moment(tree: Tree, world: SensorWorld, *, at_s: float, busy: int, idle: int, moved: int) -> Counters:
    tree.put("proc/stat", f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    tree.put("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    tree.put("proc/diskstats", DISKS.format(moved))
    tree.put("proc/7/net/dev", NET.format(moved))
    for name in ("sda", "dm-0"):
        tree.put(f"sys/block/{name}/size", "1\n")
    return read(world, at_s)


def test_the_numbers_are_those_between_two_readings(tree: Tree, world: SensorWorld) -> None:
    before = moment(tree, world, at_s=10.0, busy=100, idle=100, moved=1000)
    after = moment(tree, world, at_s=12.0, busy=130, idle=170, moved=3000)
    assert dict(zip(METRICS, between(before, after), strict=True)) == {
        "cpu_percent": 30.0,
        "memory_used_percent": 75.0,
        "disk_bytes_per_s": 2 * 2000 * 512 / 2,
        "rdma_bytes_per_s": 2 * 2000 / 2,
    }


def test_where_there_is_rdma_it_is_what_counts(tree: Tree, world: SensorWorld) -> None:
    def port(words: int) -> None:
        for way in ("xmit", "rcv"):
            tree.put(f"sys/class/infiniband/mlx5_0/ports/1/counters/port_{way}_data", f"{words}\n")

    port(0)
    before = moment(tree, world, at_s=0.0, busy=0, idle=0, moved=0)
    port(100)
    after = moment(tree, world, at_s=1.0, busy=1, idle=1, moved=5000)
    assert between(before, after)[3] == 2 * 100 * 4


def test_a_machine_that_shows_nothing_says_nothing(world: SensorWorld) -> None:
    before, after = read(world, 0.0), read(world, 1.0)
    assert between(before, after) == ()


def test_this_machine_shows_what_it_does() -> None:
    world = SensorWorld(pid=os.getpid())
    before = read(world, 0.0)
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    numbers = between(before, read(world, 1.0))
    assert len(numbers) == len(METRICS)
    assert 0 < numbers[0] <= 100
    assert 0 < numbers[1] < 100


def test_robust_outliers_knows_them() -> None:
    assert all(metric_named(name).family != "other" for name in METRICS)
