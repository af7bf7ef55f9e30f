"""Watches for processes that the kernel killed for memory: in the job's cgroup and below it, and on the whole node.

Reads `memory.events` (cgroup version 2) or `memory.oom_control` (version 1), and `oom_kill` of `/proc/vmstat`. Which
process it was is said by the kernel's log, where that may be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from robust_run.health.sensors import cgroups
from robust_run.health.sensors.files import key_values, text_or_none
from robust_run.health.sensors.settings import MemorySettings
from robust_run.health.sensors.types import AbsentError, Event, Sensor, SensorWorld

#: How often it is looked who is in the job's cgroup.
LOOK_S = 5.0
#: A kill in a cgroup that holds others' processes, too; and the note that it does.
IN_SHARED_CGROUP, SHARED = "memory.oom_kill_in_cgroup", "memory.shared"
SHARED_WORDS = "the limit of a cgroup was reached that the job shares with other processes"


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """Counts so far; None: not to be had."""

    in_cgroup: int | None = None
    on_node: int | None = None
    is_shared: bool = False
    """Processes that are not the job's are, or were, in its cgroup: what it counts may be theirs."""


class Counts:
    """Reads the counts, and now and then who else is in the job's cgroup: after a kill it may be too late to ask."""

    def __init__(self, look_s: float = LOOK_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._sharing = cgroups.Sharing()
        self._look_s, self._now_s = look_s, now_s
        self._looked_s = float("-inf")
        self._before: int | None = None
        self._is_shared = False

    def __call__(self, world: SensorWorld) -> MemorySample:
        """Return the counts. Raises AbsentError where there are none."""
        sample, now_s = read(world), self._now_s()
        if now_s - self._looked_s >= self._look_s or _new(self._before, sample.in_cgroup):
            self._looked_s = now_s
            self._is_shared = is_shared(world, self._sharing)
        self._before = sample.in_cgroup
        return msgspec.structs.replace(sample, is_shared=self._is_shared)


def is_shared(world: SensorWorld, sharing: cgroups.Sharing | None = None) -> bool:
    """Whether others are in the job's cgroup, too. `sharing`: what is known of that."""
    found = cgroups.find(world)
    return (sharing or cgroups.Sharing()).look(world, found.unified or found.memory)


def read(world: SensorWorld) -> MemorySample:
    """Return the counts. Raises AbsentError where there are none."""
    found = cgroups.find(world)
    counts = {}
    if found.unified:
        counts = key_values(text_or_none(f"{found.unified}/memory.events") or "")
    if "oom_kill" not in counts and found.memory:
        counts = key_values(text_or_none(f"{found.memory}/memory.oom_control") or "")
    on_node = _kills(text_or_none(f"{world.proc}/vmstat") or "")
    if "oom_kill" not in counts and on_node is None:
        raise AbsentError("the kernel does not count processes killed for memory")
    return MemorySample(in_cgroup=counts.get("oom_kill"), on_node=on_node)


def _kills(vmstat: str) -> int | None:
    at = vmstat.find("\noom_kill ")
    return None if at < 0 else key_values(vmstat[at + 1 : at + 40].split("\n", 1)[0]).get("oom_kill")


def judge(before: MemorySample | None, sample: MemorySample, now_s: float) -> tuple[MemorySample, tuple[Event, ...]]:
    """Return an event for new kills: the job's own, or else others' on the node."""
    notes = (_sharing_note(now_s),) if sample.is_shared and not (before is not None and before.is_shared) else ()
    own = _new(before.in_cgroup, sample.in_cgroup) if before is not None else 0
    anybody = _new(before.on_node, sample.on_node) if before is not None else 0
    if own and sample.is_shared:
        return sample, (*notes, _event(IN_SHARED_CGROUP, f"{SHARED_WORDS}; processes killed: {own}", own, now_s))
    if own:
        detail = f"the limit of the job's cgroup was reached, or the node is full; processes killed: {own}"
        return sample, (*notes, _event("memory.oom_kill", detail, own, now_s))
    if anybody:
        detail = f"the kernel killed {anybody} process{'es' if anybody > 1 else ''} on this node for memory"
        return sample, (*notes, _event("memory.oom_kill_on_node", detail, anybody, now_s))
    return sample, notes


def _sharing_note(now_s: float) -> Event:
    detail = "processes that are not the job's are in its cgroup: what that counts may be theirs"
    return Event(name=SHARED, kind="note", subject="", detail=detail, at_s=now_s)


def _new(before: int | None, now: int | None) -> int:
    return max(0, now - before) if before is not None and now is not None else 0


def _event(name: str, detail: str, count: int, now_s: float) -> Event:
    return Event(name=name, kind="alert", subject="", detail=detail, at_s=now_s, value=float(count))


def sensor(settings: MemorySettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="memory",
        about="processes that the kernel killed because memory ran out, in the job's cgroup and on the node",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=Counts(),
        judge=judge,
        start=None,
    )
