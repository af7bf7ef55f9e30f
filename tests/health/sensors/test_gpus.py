"""GPUs that fail, as a stub of NVIDIA's driver shows them through nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sensor_ground import StubDriver, Watched

from robust_run.health.sensors import gpus
from robust_run.health.sensors.gpus import CountersState, judge_counters, judge_moments
from robust_run.health.sensors.nvml import Driver, GpuCounters, GpuMoment, GpuSample
from robust_run.health.sensors.settings import GpuMemorySettings, GpuSettings
from robust_run.health.sensors.types import AbsentError, Event, Levels, SensorWorld
from robust_run.health.signs.xids import XIDS, class_of, gpu_name, meaning

QUICK = GpuSettings(interval_s=0.05, timeout_s=0.5, open_s=0, hot_hold_s=0, throttle_hold_s=0)
FIRST, SECOND = "GPU 0000:3b:00", "GPU 0000:3c:00"
GOOD = GpuCounters(gpu=FIRST, uncorrected=0, pcie_width=16, pcie_most_width=16, links=((True, (0, 0, 0, 0)),) * 2)


@pytest.fixture
def watched(driver: StubDriver, watch: Callable[..., Watched]) -> Watched:
    return watch(SensorWorld(nvml_library=driver.library), gpus.moments_sensor(QUICK))


def test_two_healthy_gpus_say_nothing(driver: StubDriver) -> None:
    sample = Driver(SensorWorld(nvml_library=driver.library)).moments()
    assert [gpu.gpu for gpu in sample.gpus] == [FIRST, SECOND]
    assert [gpu.celsius for gpu in sample.gpus] == [60, 61]
    assert [gpu.slows_at_celsius for gpu in sample.gpus] == [92, 92]
    assert judge_moments(GpuSettings(), {}, sample, 0.0)[1] == ()


@pytest.mark.parametrize(
    ("chosen", "own"),
    [("1", [SECOND]), ("0", [FIRST]), ("1,0", [FIRST, SECOND]), ("GPU-1", [SECOND]), (None, [FIRST, SECOND])],
)
def test_only_gpus_that_the_job_may_use_are_watched(driver: StubDriver, chosen: str | None, own: list[str]) -> None:
    world = SensorWorld(nvml_library=driver.library, visible_gpus=chosen)
    assert [gpu.gpu for gpu in Driver(world).moments().gpus] == own
    assert [gpu.gpu for gpu in Driver(world).counters()] == own


def test_a_gpu_of_another_job_that_is_lost_or_errs_says_nothing(driver: StubDriver) -> None:
    other = Driver(SensorWorld(nvml_library=driver.library, visible_gpus="0"))
    driver.set(lost_1=1, xid_1=79)
    assert [(gpu.gpu, gpu.lost) for gpu in other.moments().gpus] == [(FIRST, False)]
    assert [event.subject for event in judge_moments(GpuSettings(), {}, other.moments(), 0.0)[1]] == []


@pytest.mark.parametrize(
    ("chosen", "why"), [("", "uses no GPU"), ("-1", "uses no GPU"), ("MIG-63feeb45-94c6", "not known which GPUs")]
)
def test_a_job_without_a_gpu_that_is_known_has_none_watched(driver: StubDriver, chosen: str, why: str) -> None:
    with pytest.raises(AbsentError, match=why):
        Driver(SensorWorld(nvml_library=driver.library, visible_gpus=chosen))


def test_a_gpu_that_the_driver_loses_is_said_by_its_address(driver: StubDriver, watched: Watched) -> None:
    driver.set(lost_1=1)
    event = watched.wait_for("gpu.lost")
    assert event.subject == SECOND
    driver.set(lost_1=0)
    assert watched.wait_for("gpu.lost", "clear").subject == SECOND


def test_an_xid_of_the_driver_has_its_number_in_the_event_s_name(driver: StubDriver, watched: Watched) -> None:
    driver.set(xid_0=48)
    event = watched.wait_for("gpu.xid.48")
    assert (event.subject, event.number) == (FIRST, 48)
    assert "double-bit ECC" in event.detail


def test_xid_79_is_a_lost_gpu(driver: StubDriver, watched: Watched) -> None:
    driver.set(xid_1=79)
    assert watched.wait_for("gpu.lost").number == 79


def test_a_hot_gpu_and_one_whose_clocks_are_held_down_are_said(driver: StubDriver, watched: Watched) -> None:
    driver.set(celsius_0=97, throttle_1=0x40)
    assert watched.wait_for("gpu.hot").value == 97
    assert "too hot, by the hardware" in watched.wait_for("gpu.throttled").detail


def test_a_driver_that_hangs_is_an_alert_and_blocks_nobody_else(driver: StubDriver, watched: Watched) -> None:
    driver.set(hang=1)
    event = watched.wait_for("gpu.hung")
    assert "no answer for" in event.detail
    driver.set(hang=0)
    watched.wait_for("gpu.hung", "clear")


def counted(*samples: GpuCounters) -> list[Event]:
    state, events = CountersState(), []
    for turn, sample in enumerate(samples):
        state, new = judge_counters(GpuMemorySettings(), state, (sample,), 31.0 * turn)
        events += new
    return events


def changed(**values: object) -> GpuCounters:
    return msgspec.structs.replace(GOOD, **values)


def test_counters_are_read_from_the_driver(driver: StubDriver) -> None:
    driver.set(ecc_1=3, remapped_1=2, pending_1=1, width_1=8, down_1_2=1, errors_1_0=500, busy_1=1)
    first, second = Driver(SensorWorld(nvml_library=driver.library)).counters()
    assert (first.uncorrected, first.pcie_width, first.busy) == (0, 16, False)
    assert (second.uncorrected, second.remapped, second.remap_pending, second.remap_failed) == (3, 2, True, False)
    assert (second.pcie_width, second.pcie_generation, second.busy) == (8, 5, True)
    assert second.links == (
        (True, (0, 0, 500, 0)),
        (True, (0, 0, 0, 0)),
        (False, (0, 0, 0, 0)),
        (True, (0, 0, 0, 0)),
    )


def test_new_uncorrectable_errors_are_said_and_old_ones_are_not() -> None:
    events = counted(changed(uncorrected=5), changed(uncorrected=5), changed(uncorrected=7))
    assert [(event.name, event.value) for event in events] == [("gpu.ecc", 2.0)]


def test_memory_that_cannot_be_mended_is_told_from_memory_that_waits_for_a_reset() -> None:
    assert [event.name for event in counted(changed(remap_pending=True))] == ["gpu.remap_pending"]
    assert [event.name for event in counted(changed(remap_failed=True))] == ["gpu.remap_failed"]


def test_lanes_lost_during_the_job_are_told_from_lanes_that_were_never_there() -> None:
    lost = counted(GOOD, changed(pcie_width=8), changed(pcie_width=8))
    narrow = counted(changed(pcie_width=8), changed(pcie_width=8))
    assert [event.name for event in lost] == ["gpu.pcie_width"]
    assert [event.name for event in narrow] == ["gpu.pcie_narrow"]


def test_a_slow_pcie_link_counts_only_while_the_gpu_is_busy() -> None:
    slow = changed(pcie_generation=1, pcie_most_generation=5)
    assert counted(slow, slow) == []
    busy = changed(pcie_generation=1, pcie_most_generation=5, busy=True)
    assert [event.name for event in counted(busy, busy)] == ["gpu.pcie_speed"]


def test_an_nvlink_that_goes_down_or_errs_is_named() -> None:
    down = counted(GOOD, changed(links=((True, (0, 0, 0, 0)), (False, (0, 0, 0, 0)))))
    errs = counted(GOOD, changed(links=((True, (0, 0, 500, 0)), (True, (0, 0, 99, 0)))))
    assert [(event.name, event.subject) for event in down] == [("gpu.nvlink_down", f"{FIRST} NVLink 1")]
    assert [(event.name, event.subject) for event in errs] == [("gpu.nvlink_errors", f"{FIRST} NVLink 0")]
    assert "500 new CRC errors in flits" in errs[0].detail


def test_what_one_gpu_does_not_support_is_no_fault() -> None:
    assert counted(GpuCounters(gpu=FIRST), GpuCounters(gpu=FIRST)) == []
    levels: Levels = {}
    assert judge_moments(GpuSettings(), levels, GpuSample(gpus=(GpuMoment(gpu=FIRST),)), 0.0)[1] == ()


def test_a_node_without_a_driver_says_so_and_imports_nothing(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(AbsentError, match="no NVIDIA driver"):
        Driver(SensorWorld(proc=str(tmp_path)))


def test_a_library_that_is_not_there_is_absent(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="cannot be loaded"):
        Driver(SensorWorld(nvml_library=str(tmp_path / "libnvidia-ml.so.1")))


def test_a_gpu_has_one_name_however_its_address_is_written() -> None:
    forms = ["00000000:3B:00.0", "PCI:0000:3b:00", "0000:3b:00.0", "3b:00.0", "0000:3B:00:"]
    assert {gpu_name(form) for form in forms} == {FIRST}


def test_every_listed_xid_has_a_meaning_and_an_unknown_one_is_never_the_device_s() -> None:
    assert all(meaning(number) for number in XIDS)
    assert class_of(12345) == "unsure"
    assert class_of(31) == class_of(13) == "program"
