"""Watches GPUs through the driver: lost, hot, throttled, with Xid errors; and, less often, their memory, PCIe and NVLink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from robust_run.health.sensors.nvml import Driver, GpuCounters, GpuMoment, GpuSample, nvlink_counter
from robust_run.health.sensors.settings import GpuMemorySettings, GpuSettings
from robust_run.health.sensors.types import Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow
from robust_run.health.signs.xids import LOST, meaning

#: NVML's bits for why a clock is low. A power cap of the software (0x4) and idling (0x1) are daily business.
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "too hot, by the driver",
    0x40: "too hot, by the hardware",
    0x80: "power brake",
}


class CountersState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read first and before."""

    first: Mapping[str, GpuCounters] = {}
    before: Mapping[str, GpuCounters] = {}
    levels: Levels = {}


def judge_moments(
    settings: GpuSettings, levels: Levels, sample: GpuSample, now_s: float
) -> tuple[Levels, tuple[Event, ...]]:
    """Return which GPUs are lost, hot or throttled, and their Xid errors."""
    conditions = [condition for gpu in sample.gpus for condition in _of_moment(settings, gpu)]
    levels, said = follow(levels, conditions, now_s)
    xids = [
        Event(
            name="gpu.lost" if number in LOST else f"gpu.xid.{number}",
            kind="alert",
            subject=gpu,
            detail=f"Xid {number}: {meaning(number)}",
            at_s=now_s,
            number=number,
        )
        for gpu, number in dict.fromkeys(sample.xids)
    ]
    return levels, (*xids, *said)


def _of_moment(settings: GpuSettings, gpu: GpuMoment) -> Iterator[Condition]:
    if gpu.lost:
        yield Condition(name="gpu.lost", subject=gpu.gpu, detail="the driver says that the GPU is lost")
        return
    limit = gpu.slows_at_celsius or settings.hot_celsius
    if gpu.celsius is not None and gpu.celsius >= limit:
        yield Condition(
            name="gpu.hot",
            subject=gpu.gpu,
            detail=f"it is {gpu.celsius} °C hot (limit {limit:.0f} °C)",
            value=gpu.celsius,
            limit=limit,
            hold_s=settings.hot_hold_s,
        )
    reasons = [text for bit, text in _THROTTLES.items() if (gpu.throttling or 0) & bit]
    if reasons:
        yield Condition(
            name="gpu.throttled",
            subject=gpu.gpu,
            detail=f"its clocks are held down: {', '.join(reasons)}",
            hold_s=settings.throttle_hold_s,
        )


def judge_counters(
    settings: GpuMemorySettings, state: CountersState, sample: tuple[GpuCounters, ...], now_s: float
) -> tuple[CountersState, tuple[Event, ...]]:
    """Return what got worse in the GPUs' memory and links."""
    now = {gpu.gpu: gpu for gpu in sample if not gpu.lost}
    first = {**now, **state.first}
    conditions: list[Condition] = []
    events: list[Event] = []
    for name, gpu in now.items():
        conditions += _lasting(first[name], gpu)
        if name in state.before:
            events += _news(settings, state.before[name], gpu, now_s)
    levels, said = follow(state.levels, conditions, now_s)
    return CountersState(first=first, before={**state.before, **now}, levels=levels), (*events, *said)


def _lasting(first: GpuCounters, gpu: GpuCounters) -> Iterator[Condition]:
    if gpu.remap_failed:
        detail = "a row of its memory could not be remapped"
        yield Condition(name="gpu.remap_failed", subject=gpu.gpu, detail=detail, repeat_s=3600.0)
    if gpu.remap_pending:
        detail = "a row of its memory waits to be remapped at the next reset"
        yield Condition(name="gpu.remap_pending", subject=gpu.gpu, detail=detail, repeat_s=3600.0)
    if gpu.pcie_width is not None and first.pcie_width is not None and gpu.pcie_width < first.pcie_width:
        yield _pcie(
            "gpu.pcie_width", gpu, f"its PCIe link has {gpu.pcie_width} lanes, at first it had {first.pcie_width}"
        )
    elif gpu.pcie_width is not None and gpu.pcie_most_width is not None and gpu.pcie_width < gpu.pcie_most_width:
        yield _pcie("gpu.pcie_narrow", gpu, f"its PCIe link has {gpu.pcie_width} of {gpu.pcie_most_width} lanes")
    speed, most = gpu.pcie_generation, gpu.pcie_most_generation
    if gpu.busy and speed is not None and most is not None and speed < most:
        yield _pcie("gpu.pcie_speed", gpu, f"its PCIe link runs as generation {speed} of {most}")
    for link, (active, _) in enumerate(gpu.links):
        if not active and link < len(first.links) and first.links[link][0]:
            detail = "the link is not active any more"
            yield Condition(name="gpu.nvlink_down", subject=f"{gpu.gpu} NVLink {link}", detail=detail)


def _pcie(name: str, gpu: GpuCounters, detail: str) -> Condition:
    return Condition(name=name, subject=gpu.gpu, detail=detail, hold_s=30.0, repeat_s=3600.0)


def _news(settings: GpuMemorySettings, before: GpuCounters, gpu: GpuCounters, now_s: float) -> Iterator[Event]:
    new = (gpu.uncorrected or 0) - (before.uncorrected or 0)
    if new > 0:
        detail = f"{new} uncorrectable ECC error{'s' if new > 1 else ''} in its memory"
        yield Event(name="gpu.ecc", kind="alert", subject=gpu.gpu, detail=detail, at_s=now_s, value=float(new))
    for link, ((_, errors), (_, old)) in enumerate(zip(gpu.links, before.links, strict=False)):
        for kind, (count, count_before) in enumerate(zip(errors, old, strict=False)):
            more = count - count_before
            if more >= settings.nvlink_errors:
                yield Event(
                    name="gpu.nvlink_errors",
                    kind="alert",
                    subject=f"{gpu.gpu} NVLink {link}",
                    detail=f"{more} new {nvlink_counter(kind)} (limit {settings.nvlink_errors})",
                    at_s=now_s,
                    value=float(more),
                    limit=float(settings.nvlink_errors),
                )


def moments_sensor(settings: GpuSettings) -> Sensor:
    """Return the sensor of what GPUs are like now."""
    about = "GPUs that are lost, hot or throttled; Xid errors"
    return _sensor("gpu", about, settings, Driver.moments, partial(judge_moments, settings), {})


def counters_sensor(settings: GpuMemorySettings) -> Sensor:
    """Return the sensor of what GPUs have counted."""
    about = "GPU memory (ECC, remapped rows), PCIe width and speed, NVLink"
    return _sensor("gpu_memory", about, settings, Driver.counters, partial(judge_counters, settings), CountersState())


def _sensor(
    name: str,
    about: str,
    settings: GpuSettings | GpuMemorySettings,
    ask: Callable[[Driver], Any],
    judge: Callable[[Any, Any, float], tuple[Any, tuple[Event, ...]]],
    start: Any,
) -> Sensor:
    """Return a sensor that opens the driver at its first reading, in its own thread."""
    opened: list[Driver] = []

    def read(world: SensorWorld) -> Any:
        if not opened:
            opened.append(Driver(world))
        return ask(opened[0])

    return Sensor(
        name=name,
        about=about,
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        open_s=settings.open_s,
        read=read,
        judge=judge,
        start=start,
    )
