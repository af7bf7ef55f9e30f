"""Asks each network file system that the job uses for a sign of life (statvfs). One that hangs blocks its own thread alone."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection

import msgspec

from robust_run.health.sensors.job import mountinfo
from robust_run.health.sensors.job.job_mounts import used_among
from robust_run.health.sensors.settings import MountSettings
from robust_run.health.sensors.types import Event, Sensor, SensorWorld

_STALE = (errno.ESTALE,)
#: What a healthy mount may answer: it lives.
_ALIVE = (errno.EACCES, errno.EPERM, errno.ENOSYS)


class MountSample(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    error: int = 0
    """errno; 0: it lives, or it was not asked."""


class MountState(msgspec.Struct, frozen=True, kw_only=True):
    """When an error was last said, and as what."""

    said_s: float | None = None
    name: str = ""


def read(where: str, ask: Callable[[str], object] = os.statvfs) -> MountSample:
    """Return what a file system answers."""
    try:
        ask(where)
    except OSError as failure:
        return MountSample(error=0 if failure.errno in _ALIVE else failure.errno or errno.EIO)
    return MountSample()


def judge(
    where: str, repeat_s: float, state: MountState, sample: MountSample, now_s: float
) -> tuple[MountState, tuple[Event, ...]]:
    """Return whether it answers with an error, said again every `repeat_s`."""
    name = "mount.stale" if sample.error in _STALE else "mount.error"
    if not sample.error:
        over = Event(
            name=state.name or "mount.error", kind="clear", subject=where, detail="it answers again", at_s=now_s
        )
        return MountState(), (over,) if state.said_s is not None else ()
    if state.said_s is not None and now_s - state.said_s < repeat_s:
        return state, ()
    detail = f"the file system answers with an error: {os.strerror(sample.error)}"
    return MountState(said_s=now_s, name=name), (
        Event(name=name, kind="alert", subject=where, detail=detail, at_s=now_s),
    )


class InUse:
    """Which mounts the job uses, or has used since this was made: another job's, even one that hangs, is none of this one's."""

    def __init__(self, wheres: Collection[str], look_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._wheres = set(wheres)
        self._look_s, self._now_s = look_s, now_s
        self._looked_s = float("-inf")
        self._used: set[str] = set()
        self._lock = threading.Lock()

    def has(self, where: str, world: SensorWorld) -> bool:
        """Whether it does, by a look of `look_s` ago at most. For any thread."""
        with self._lock:
            due = self._now_s() - self._looked_s >= self._look_s
            if where not in self._used and due:
                self._looked_s = self._now_s()
                self._used |= used_among(world, self._wheres - self._used)
            return where in self._used


def sensors(settings: MountSettings, world: SensorWorld) -> tuple[Sensor, ...]:
    """Return a sensor for each network mount, and for FUSE mounts that hold a folder of the job. Raises OSError."""
    mounts = mountinfo.read(world)
    used = {mount.where for folder in world.folders if (mount := mountinfo.mount_of(folder, mounts)) is not None}
    asked = [
        mount.where for mount in mounts if mount.is_remote or (mount.kind.startswith("fuse") and mount.where in used)
    ]
    wheres = list(dict.fromkeys(asked))[: settings.most_mounts]
    use = InUse(wheres, settings.interval_s)
    return tuple(_sensor(settings, where, use) for where in wheres)


def _sensor(settings: MountSettings, where: str, use: InUse) -> Sensor:
    return Sensor(
        name="mount",
        subject=where,
        about="whether a network file system that the job uses answers, and not with ESTALE",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=lambda world: read(where) if use.has(where, world) else MountSample(),
        judge=lambda state, sample, now_s: judge(where, 30.0, state, sample, now_s),
        start=MountState(),
    )
