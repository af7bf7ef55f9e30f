"""Watches the file systems and disks that the job writes to: space, inodes, read-only, errors, I/O that never ends.

Reads mountinfo, statvfs of local file systems, `/proc/diskstats`, and error counters below `/sys`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from robust_run.health.sensors.files import names_in, number, text_or_none, there
from robust_run.health.sensors.job import mountinfo
from robust_run.health.sensors.job.block_devices import kind_of
from robust_run.health.sensors.job.job_mounts import stands_on
from robust_run.health.sensors.settings import DiskSettings
from robust_run.health.sensors.types import Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

#: Written to by us, so that a full one says so; of others there are too many.
_NO_SPACE = frozenset(("proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "squashfs", "iso9660"))


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a file system."""

    free_bytes: int
    total_bytes: int
    free_files: int = 1
    total_files: int = 0
    """0: it does not count them."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """One disk's counters."""

    done: int
    """Requests completed."""
    in_flight: int
    waited_ms: int = 0
    """How long all of those took together."""


class DiskSample(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read at one moment, by place or device."""

    spaces: Mapping[str, Space]
    read_only: Mapping[str, bool]
    """By folder that the job writes to, and `/`."""
    remote: frozenset[str] = frozenset()
    """Those of these folders that another machine serves."""
    errors: Mapping[str, int]
    disks: Mapping[str, Disk]


class DiskState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before."""

    before: DiskSample | None = None
    levels: Levels = {}


def read(world: SensorWorld) -> DiskSample:
    """Return the state of local disks and of the file systems below the job's folders. Raises OSError."""
    mounts = mountinfo.read(world)
    spaces, read_only, remote = {}, {}, set()
    for folder in dict.fromkeys((*world.folders, "/")):
        mount = mountinfo.mount_of(folder, mounts)
        if mount is None:
            continue
        read_only[folder] = mount.read_only
        if mount.is_remote:
            remote.add(folder)
        # a remote one may hang: those have sensors of their own
        if not mount.is_remote and not mount.read_only and mount.kind not in _NO_SPACE and folder in world.folders:
            spaces[folder] = _space(folder)
    return DiskSample(
        spaces=spaces,
        read_only=read_only,
        remote=frozenset(remote),
        errors=dict(_errors(world)),
        disks=parse_disks(text_or_none(f"{world.proc}/diskstats") or ""),
    )


def _space(folder: str) -> Space:
    found = os.statvfs(there(folder))
    return Space(
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        free_files=found.f_favail,
        total_files=found.f_files,
    )


def _errors(world: SensorWorld) -> Iterator[tuple[str, int]]:
    """Of the node's disks, and of file systems that lie on them: those of images and of other jobs' volumes say nothing of it."""
    for disk in names_in(f"{world.sys}/block", 1024):
        if kind_of(disk) != "disk":
            continue
        count = number(f"{world.sys}/block/{disk}/device/ioerr_cnt")
        if count is not None:
            yield disk, count
    for device in names_in(f"{world.sys}/fs/ext4", 256):
        is_own = kind_of(device) == "disk" or (kind_of(device) != "passing" and stands_on(world, device))
        count = number(f"{world.sys}/fs/ext4/{device}/errors_count") if is_own else None
        if count is not None:
            yield f"ext4 on {device}", count


def parse_disks(text: str) -> dict[str, Disk]:
    """Return the disks in /proc/diskstats; partitions of nothing and virtual ones are left out. Pure."""
    disks = {}
    for line in text.split("\n"):
        row = line.split()
        if len(row) < 14 or kind_of(row[2]) != "disk" or not all(row[at].isdecimal() for at in (3, 6, 7, 10, 11)):
            continue
        waited_ms = int(row[6]) + int(row[10])
        disks[row[2]] = Disk(done=int(row[3]) + int(row[7]), in_flight=int(row[11]), waited_ms=waited_ms)
    return disks


def judge(
    settings: DiskSettings, state: DiskState, sample: DiskSample, now_s: float
) -> tuple[DiskState, tuple[Event, ...]]:
    """Return what is wrong. What was read-only at first is meant to be."""
    before = sample if state.before is None else state.before
    conditions = [
        *_full(settings, sample),
        *_stuck(settings, before, sample),
        *_turned(before, sample),
    ]
    events = [
        Event(
            name="disk.error",
            kind="alert",
            subject=name,
            detail=f"{count - before.errors[name]} new errors are counted",
            at_s=now_s,
            value=float(count),
        )
        for name, count in sample.errors.items()
        if count > before.errors.get(name, count)
    ]
    levels, said = follow(state.levels, conditions, now_s)
    kept = msgspec.structs.replace(sample, read_only={**sample.read_only, **_first(before)})
    return DiskState(before=kept, levels=levels), (*events, *said)


def _first(before: DiskSample) -> dict[str, bool]:
    """What could be written at first stays a fault while it cannot."""
    return {folder: False for folder, read_only in before.read_only.items() if not read_only}


def _turned(before: DiskSample, sample: DiskSample) -> Iterator[Condition]:
    for folder, read_only in sample.read_only.items():
        if read_only and not before.read_only.get(folder, True):
            detail = "the file system has become read-only"
            name = "mount.read_only" if folder in sample.remote else "disk.read_only"
            yield Condition(name=name, subject=folder, detail=detail, repeat_s=300.0)


def _full(settings: DiskSettings, sample: DiskSample) -> Iterator[Condition]:
    for folder, space in sample.spaces.items():
        share = space.free_bytes / max(1, space.total_bytes)
        if share < settings.least_free_share and space.free_bytes < settings.least_free_bytes:
            yield Condition(
                name="disk.full",
                subject=folder,
                detail=f"{space.free_bytes / 1e6:.1f} MB of {space.total_bytes / 1e9:.2f} GB are free ({share:.1%})",
                value=float(space.free_bytes),
                limit=settings.least_free_bytes,
                repeat_s=settings.space_repeat_s,
            )
        elif space.total_files and space.free_files / space.total_files < settings.least_free_share / 10:
            detail = f"{space.free_files} of {space.total_files} inodes are free"
            yield Condition(name="disk.full", subject=folder, detail=detail, repeat_s=settings.space_repeat_s)


def _stuck(settings: DiskSettings, before: DiskSample, sample: DiskSample) -> Iterator[Condition]:
    for name, disk in sample.disks.items():
        old = before.disks.get(name)
        if old is not None and old is not disk and disk.in_flight and old.in_flight and disk.done == old.done:
            detail = f"{disk.in_flight} requests are under way and none ends"
            yield Condition(name="disk.stuck", subject=name, detail=detail, hold_s=settings.stuck_hold_s)


def sensor(settings: DiskSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="disk",
        about="file systems that the job writes to: full, gone read-only, with errors; disks whose requests never end",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=read,
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=DiskState(),
    )
