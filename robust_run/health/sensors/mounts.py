"""Asks each network file system for a sign of life (statvfs). One that hangs blocks its own sensor's thread and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import msgspec

from robust_run.health.sensors import mountinfo
from robust_run.health.sensors.settings import MountSettings
from robust_run.health.sensors.types import Event, Sensor, World

_STALE = (errno.ESTALE,)
#: What a healthy mount may answer: it lives.
_ALIVE = (errno.EACCES, errno.EPERM, errno.ENOSYS)


class MountSample(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    error: int = 0
    """errno; 0: it lives."""


class MountState(msgspec.Struct, frozen=True, kw_only=True):
    """When an error was last said."""

    said_s: float | None = None


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
        over = Event(name="mount.error", kind="clear", subject=where, detail="it answers again", at_s=now_s)
        return MountState(), (over,) if state.said_s is not None else ()
    if state.said_s is not None and now_s - state.said_s < repeat_s:
        return state, ()
    detail = f"the file system answers with an error: {os.strerror(sample.error)}"
    return MountState(said_s=now_s), (Event(name=name, kind="alert", subject=where, detail=detail, at_s=now_s),)


def sensors(settings: MountSettings, world: World) -> tuple[Sensor, ...]:
    """Return a sensor for each network mount, and for FUSE mounts that hold a folder of the job. Raises OSError."""
    mounts = mountinfo.read(world)
    used = {mount.where for folder in world.folders if (mount := mountinfo.mount_of(folder, mounts)) is not None}
    asked = [
        mount.where for mount in mounts if mount.is_remote or (mount.kind.startswith("fuse") and mount.where in used)
    ]
    return tuple(_sensor(settings, where) for where in list(dict.fromkeys(asked))[: settings.most_mounts])


def _sensor(settings: MountSettings, where: str) -> Sensor:
    return Sensor(
        name="mount",
        subject=where,
        about="whether a network file system answers, and not with ESTALE",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=lambda _: read(where),
        judge=lambda state, sample, now_s: judge(where, 30.0, state, sample, now_s),
        start=MountState(),
    )
