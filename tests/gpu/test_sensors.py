"""The sensors of GPUs against a real driver: what they read is plausible, and a healthy GPU says nothing that evicts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from robust_run.health.rules.book import load
from robust_run.health.rules.deciding import decide
from robust_run.health.sensors.gpus import CountersState, judge_counters, judge_moments
from robust_run.health.sensors.nvml import Driver
from robust_run.health.sensors.settings import GpuMemorySettings, GpuSettings
from robust_run.health.sensors.types import SensorWorld


@pytest.fixture
def driver() -> Driver:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("there is no NVIDIA GPU here (/dev/nvidiactl)")
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    return Driver(SensorWorld())


def test_a_real_gpu_is_named_by_its_address_and_has_a_temperature(driver: Driver) -> None:
    sample = driver.moments()
    assert sample.gpus
    for gpu in sample.gpus:
        assert gpu.gpu.startswith("GPU 0000:") or gpu.gpu.count(":") == 2
        assert not gpu.lost
        assert gpu.celsius is not None
        assert 0 < gpu.celsius < 120


def test_a_real_gpu_counts_its_lanes(driver: Driver) -> None:
    assert all(gpu.pcie_width in (1, 2, 4, 8, 16, None) for gpu in driver.counters())


def test_a_healthy_gpu_is_not_evicted(driver: Driver) -> None:
    book, now_s = load(""), time.monotonic()
    _, moments = judge_moments(GpuSettings(), {}, driver.moments(), now_s)
    state, _ = judge_counters(GpuMemorySettings(), CountersState(), driver.counters(), now_s)
    _, counters = judge_counters(GpuMemorySettings(), state, driver.counters(), now_s + 60)
    decisions = [decide(book, {}, "n1", event, now_s)[1] for event in (*moments, *counters)]
    assert [decision for decision in decisions if decision is not None and decision.rung == "evict"] == []
