"""Looks for programs that are not the job's and take its CPUs. Only while work waits for CPUs: listing processes costs most.

Reads `/proc/pressure/cpu` and, under pressure, `/proc/*/stat`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from robust_run.health.sensors.files import names_in, text_or_none
from robust_run.health.sensors.settings import NeighbourSettings
from robust_run.health.sensors.types import AbsentError, Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

MOST_PROCESSES = 3000
_SOME = re.compile(r"^some avg10=(\d{1,3}(?:\.\d+)?) ")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment."""

    parent: int
    group: int
    name: str
    cpu_s: float
    """So far."""
    start: int
    """Tells processes apart that had the same id."""


class NeighbourSample(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs; no process is listed while no work waits for CPUs."""

    waiting_percent: float
    processes: Mapping[int, Process]
    job: int
    """The process whose descendants are the job."""


class NeighbourState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before."""

    before: Mapping[int, Process] = {}
    before_s: float = 0.0
    levels: Levels = {}


def read(settings: NeighbourSettings, world: SensorWorld) -> NeighbourSample:
    """Return who runs. Raises AbsentError where pressure is not told."""
    text = text_or_none(f"{world.proc}/pressure/cpu")
    found = _SOME.match(text or "")
    if found is None:
        raise AbsentError("the kernel does not tell how much work waits for CPUs (PSI is off)")
    waiting = float(found.group(1))
    job = world.pid or os.getpid()
    if waiting < settings.cpu_percent:
        return NeighbourSample(waiting_percent=waiting, processes={}, job=job)
    ids = [name for name in names_in(world.proc, 2 * MOST_PROCESSES) if name.isdecimal()][:MOST_PROCESSES]
    listed = {int(pid): parse(text_or_none(f"{world.proc}/{pid}/stat") or "") for pid in ids}
    processes = {pid: process for pid, process in listed.items() if process is not None}
    return NeighbourSample(waiting_percent=waiting, processes=processes, job=job)


def parse(text: str) -> Process | None:
    """Return what /proc/PID/stat says; None for anything else. Pure."""
    front, _, back = text.rpartition(")")
    row = back.split()
    if len(row) < 20 or not all(row[at].isdecimal() for at in (1, 2, 11, 12, 19)):
        return None
    return Process(
        parent=int(row[1]),
        group=int(row[2]),
        name=front.partition("(")[2][:64],
        cpu_s=(int(row[11]) + int(row[12])) / 100,
        start=int(row[19]),
    )


def judge(
    settings: NeighbourSettings, state: NeighbourState, sample: NeighbourSample, now_s: float
) -> tuple[NeighbourState, tuple[Event, ...]]:
    """Return which group of processes, not the job's, takes more CPUs than it should."""
    passed_s = now_s - state.before_s
    used: dict[tuple[int, str], float] = {}
    own = descendants(sample.processes, sample.job)
    for pid, process in sample.processes.items():
        old = state.before.get(pid)
        if pid in own or old is None or old.start != process.start or passed_s <= 0:
            continue
        key = (process.group, process.name)
        used[key] = used.get(key, 0.0) + (process.cpu_s - old.cpu_s) / passed_s
    conditions = [
        Condition(
            name="cpu.neighbour",
            subject=f"{name} (process group {group})",
            detail=f"it takes {cores:.1f} CPUs (limit {settings.cores:g}) while work waits for them, and is not the job's",
            value=cores,
            limit=settings.cores,
            hold_s=settings.hold_s,
            repeat_s=300.0,
        )
        for (group, name), cores in used.items()
        if cores > settings.cores
    ]
    levels, events = follow(state.levels, conditions, now_s)
    return NeighbourState(before=sample.processes, before_s=now_s, levels=levels), events


def descendants(processes: Mapping[int, Process], root: int) -> set[int]:
    """Return a process and all below it."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found, open_ = {root}, [root]
    while open_:
        new = [child for child in children.get(open_.pop(), ()) if child not in found]
        found.update(new)
        open_ += new
    return found


def sensor(settings: NeighbourSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="neighbours",
        about="programs that are not the job's and take its CPUs",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=lambda world: read(settings, world),
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=NeighbourState(),
    )
