"""Times a small durable write (4 KiB, then fsync) in each folder of the job.

One sensor for each: a folder that hangs hides no other. The file has no name (O_TMPFILE), so nothing is left behind
in any case.
"""

from __future__ import annotations

import errno
import os
import time

import msgspec

from robust_run.health.sensors.files import there
from robust_run.health.sensors.settings import FsyncSettings
from robust_run.health.sensors.types import AbsentError, Event, Sensor, SensorWorld

_BLOCK = b"\0" * 4096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL)
#: These say that the file system is unwell; EROFS and ENOSPC are told by the disk sensor, as what they are.
_FAULTS = {errno.EIO: "disk.error", errno.ESTALE: "mount.stale"}


class FsyncSample(msgspec.Struct, frozen=True, kw_only=True):
    """One durable write."""

    took_s: float
    error: int = 0
    """errno; 0: it went well."""


class FsyncState(msgspec.Struct, frozen=True, kw_only=True):
    """How many slow ones came in a row, and whether that was said."""

    slow: int = 0
    said: bool = False


def read(folder: str) -> FsyncSample:
    """Make one durable write. Raises AbsentError where a file without a name cannot be made."""
    start_s = time.monotonic()
    error = 0
    try:
        descriptor = os.open(there(folder), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, _BLOCK)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as failure:
        if failure.errno in _UNSUPPORTED:
            raise AbsentError(f"durable writes cannot be timed in {folder}: {failure.strerror}") from failure
        error = failure.errno or errno.EIO
    return FsyncSample(took_s=time.monotonic() - start_s, error=error)


def judge(
    settings: FsyncSettings, folder: str, state: FsyncState, sample: FsyncSample, now_s: float
) -> tuple[FsyncState, tuple[Event, ...]]:
    """Return whether durable writes are slow, several in a row, or fail for what is not a full disk."""
    if sample.error in _FAULTS:
        detail = f"a small durable write failed: {os.strerror(sample.error)}"
        event = Event(name=_FAULTS[sample.error], kind="alert", subject=folder, detail=detail, at_s=now_s)
        return state, (event,)
    if sample.error:
        return state, ()
    if sample.took_s < settings.slow_s:
        done = Event(
            name="disk.slow_fsync",
            kind="clear",
            subject=folder,
            detail=f"a small durable write takes {sample.took_s:.2f} s again",
            at_s=now_s,
        )
        return FsyncState(), (done,) if state.said else ()
    slow = state.slow + 1
    if slow < settings.slow_in_row:
        return FsyncState(slow=slow, said=state.said), ()
    detail = f"a small durable write took {sample.took_s:.1f} s (limit {settings.slow_s:g} s), {slow} times in a row"
    event = Event(
        name="disk.slow_fsync",
        kind="alert",
        subject=folder,
        detail=detail,
        at_s=now_s,
        value=sample.took_s,
        limit=settings.slow_s,
    )
    return FsyncState(slow=slow, said=True), (event,)


def sensors(settings: FsyncSettings, world: SensorWorld) -> tuple[Sensor, ...]:
    """Return a sensor for each folder of the job."""
    return tuple(_sensor(settings, folder) for folder in world.folders)


def _sensor(settings: FsyncSettings, folder: str) -> Sensor:
    return Sensor(
        name="fsync",
        subject=folder,
        about="how long a small durable write takes in a folder that the job writes to",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=lambda _: read(folder),
        judge=lambda state, sample, now_s: judge(settings, folder, state, sample, now_s),
        start=FsyncState(),
    )
