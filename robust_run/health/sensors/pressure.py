"""Watches how short memory, CPU and I/O are: pressure (PSI), free memory, swapping, and CPU limits that throttle the job.

Reads `/proc/pressure/*`, `/proc/meminfo`, `/proc/vmstat`, and `cpu.stat` of the job's cgroup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from robust_run.health.sensors import cgroups
from robust_run.health.sensors.files import key_values, text_or_none
from robust_run.health.sensors.memory import is_shared
from robust_run.health.sensors.settings import PressureSettings
from robust_run.health.sensors.types import Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

_AVERAGE = re.compile(r"^(some|full) avg10=(\d{1,3}(?:\.\d+)?) ", re.MULTILINE)
_MEMORY = re.compile(r"^(MemTotal|MemAvailable): +(\d{1,15}) kB", re.MULTILINE)


class PressureSample(msgspec.Struct, frozen=True, kw_only=True):
    """All at one moment."""

    waiting: Mapping[str, float]
    """`memory full`, `cpu some`, ...: percent of the last 10 s, of all work on the node. Empty where the kernel does not say."""
    own: Mapping[str, float] = {}
    """The same of the job's own cgroup; empty where it has none to itself."""
    memory_bytes: int = 0
    free_bytes: int = 0
    swapped_pages: int = 0
    """In and out, so far."""
    throttled_s: float | None = None
    """How long the job's cgroup was not let run, so far; None: unknown."""


class PressureState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before."""

    before: PressureSample | None = None
    before_s: float = 0.0
    levels: Levels = {}


def _waiting(path: str) -> dict[str, float]:
    found = {}
    for name in ("memory", "cpu", "io"):
        for how, percent in _AVERAGE.findall(text_or_none(path.format(name)) or ""):
            found[f"{name} {how}"] = float(percent)
    return found


def read(world: SensorWorld, *, shared: bool = False) -> PressureSample:
    """Return what is short. What cannot be read is left out. `shared`: others are in the job's cgroup, too."""
    group = cgroups.find(world).unified
    memory = dict(_MEMORY.findall(text_or_none(f"{world.proc}/meminfo") or ""))
    swaps = re.findall(r"^pswp(?:in|out) (\d{1,18})$", text_or_none(f"{world.proc}/vmstat") or "", re.MULTILINE)
    return PressureSample(
        waiting=_waiting(f"{world.proc}/pressure/{{}}"),
        own={} if shared or not group else _waiting(f"{group}/{{}}.pressure"),
        memory_bytes=1024 * int(memory.get("MemTotal", 0)),
        free_bytes=1024 * int(memory.get("MemAvailable", 0)),
        swapped_pages=sum(map(int, swaps)),
        throttled_s=throttled_s(world),
    )


def throttled_s(world: SensorWorld) -> float | None:
    """Return for how long the limit of the job's cgroup (cpu.max, cpu.cfs_quota_us) has held it back so far."""
    found = cgroups.find(world)
    new = key_values(text_or_none(f"{found.unified}/cpu.stat") or "") if found.unified else {}
    if "throttled_usec" in new:
        return new["throttled_usec"] / 1e6
    old = key_values(text_or_none(f"{found.cpu}/cpu.stat") or "") if found.cpu else {}
    return old["throttled_time"] / 1e9 if "throttled_time" in old else None


def judge(
    settings: PressureSettings, state: PressureState, sample: PressureSample, now_s: float
) -> tuple[PressureState, tuple[Event, ...]]:
    """Return what has been short for long."""
    conditions = list(_waits(settings, sample))
    share = sample.free_bytes / sample.memory_bytes if sample.memory_bytes else 1.0
    if share < settings.least_free_memory_share:
        detail = f"{sample.free_bytes / 1e9:.1f} GB of {sample.memory_bytes / 1e9:.0f} GB of memory are free"
        conditions.append(_condition(settings, "memory.short", detail, share, settings.least_free_memory_share))
    if state.before is not None and now_s > state.before_s:
        conditions += _rates(settings, state.before, sample, now_s - state.before_s)
    levels, events = follow(state.levels, conditions, now_s)
    return PressureState(before=sample, before_s=now_s, levels=levels), events


def _waits(settings: PressureSettings, sample: PressureSample) -> Iterator[Condition]:
    """The job's own waiting is about the job; that of the whole node may be of others' work alone, and explains nothing."""
    rows = (
        ("memory full", "memory.pressure", settings.memory_percent, "all work waited for memory"),
        ("cpu some", "cpu.pressure", settings.cpu_percent, "some work waited for a CPU"),
        ("io full", "disk.pressure", settings.io_percent, "all work waited for I/O"),
    )
    for key, name, limit, what in rows:
        own, anybody = sample.own.get(key, 0.0), sample.waiting.get(key, 0.0)
        if own > limit:
            detail = f"{what} for {own:.0f} % of the last 10 s in the job's cgroup (limit {limit:g} %)"
            yield _condition(settings, name, detail, own, limit)
        elif anybody > limit:
            detail = f"{what} for {anybody:.0f} % of the last 10 s on the whole node (limit {limit:g} %)"
            yield _condition(settings, f"{name}_on_node", detail, anybody, limit)


def _rates(
    settings: PressureSettings, before: PressureSample, sample: PressureSample, passed_s: float
) -> Iterator[Condition]:
    swapped = (sample.swapped_pages - before.swapped_pages) / passed_s
    if swapped > settings.swap_pages_per_s:
        detail = f"{swapped:.0f} pages a second are swapped (limit {settings.swap_pages_per_s:g})"
        yield _condition(settings, "memory.swapping", detail, swapped, settings.swap_pages_per_s)
    if sample.throttled_s is None or before.throttled_s is None:
        return
    share = (sample.throttled_s - before.throttled_s) / passed_s
    if share > settings.throttled_share:
        detail = (
            f"its cgroup's CPU limit held the job back for {share:.2f} s a second (limit {settings.throttled_share:g})"
        )
        yield _condition(settings, "cpu.throttled", detail, share, settings.throttled_share)


def _condition(settings: PressureSettings, name: str, detail: str, value: float, limit: float) -> Condition:
    return Condition(
        name=name, subject="", detail=detail, value=value, limit=limit, hold_s=settings.hold_s, repeat_s=300.0
    )


def sensor(settings: PressureSettings) -> Sensor:
    """Return the sensor."""
    sharing = cgroups.Sharing()
    return Sensor(
        name="pressure",
        about="memory, CPU and I/O that work waits for; swapping; CPU limits that hold the job back",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=lambda world: read(world, shared=is_shared(world, sharing)),
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=PressureState(),
    )
