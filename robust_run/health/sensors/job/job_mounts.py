"""What the job's files lie on: the devices of its folders, and the mounts that its processes see or use."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from robust_run.health.sensors.files import MOST_BYTES, names_in, text_or_none
from robust_run.health.sensors.job import block_devices, mountinfo
from robust_run.health.sensors.job.lineage import descendants
from robust_run.health.sensors.job.mountinfo import MountinfoLine
from robust_run.health.sensors.types import SensorWorld

#: File systems that are made of folders of others, as containers have them.
LAYERED = frozenset(("overlay", "aufs", "fuse.fuse-overlayfs", "fuse.unionfs"))
#: Mount namespaces of the job's processes that are looked into.
MOST_NAMESPACES = 16
#: Open files that are looked at, of each process and of all.
MOST_FILES, MOST_OF_ALL = 1024, 20_000


def mounts_of(world: SensorWorld, pid: int) -> tuple[MountinfoLine, ...]:
    """Return the mounts that a process sees; none where it is gone."""
    return mountinfo.parse(text_or_none(f"{world.proc}/{pid}/mountinfo", MOST_BYTES << 4) or "")


def places(world: SensorWorld) -> tuple[str, ...]:
    """Return where the job works: the folders that it writes to, the one that it was started in, and its Python's."""
    return tuple(dict.fromkeys(filter(None, (*world.folders, _link(f"{world.process}/cwd"), *world.python))))


def stands_on(world: SensorWorld, device: str) -> bool | None:
    """Whether `/` or a place of the job lies on a device; None where one lies on layers, of which it is not said on what."""
    mounts = mounts_of(world, world.job)
    held = [mount for place in (*places(world), "/") if (mount := mountinfo.mount_of(place, mounts)) is not None]
    if device in block_devices.below((_device_of(mount, world) for mount in held), world):
        return True
    return None if not held or any(mount.kind in LAYERED for mount in held) else False


def _device_of(mount: MountinfoLine, world: SensorWorld) -> str:
    """Return the device of a mount; empty: it has none. btrfs and its like have a number of their own, and a device as source."""
    source = os.path.basename(os.path.realpath(mount.source)) if mount.source.startswith("/dev/") else ""
    return block_devices.name_of(mount.device, world) or source


def namespaces(world: SensorWorld) -> tuple[int, ...]:
    """Return a process of each mount namespace that the job has, the agent first."""
    found: dict[str, int] = {}
    for pid in descendants(world, world.job):
        namespace = _link(f"{world.proc}/{pid}/ns/mnt")
        if namespace:
            found.setdefault(namespace, pid)
        if len(found) >= MOST_NAMESPACES:
            break
    return tuple(found.values())


def is_image(world: SensorWorld, device: str) -> bool:
    """Whether a device is mounted where the job's processes are, and not where its agent is: for them alone, then."""
    number = block_devices.number_of(device, world)
    outside = {mount.where for mount in mounts_of(world, world.job) if mount.device == number}
    return bool(number) and any(
        mount.device == number and mount.where not in outside
        for pid in namespaces(world)
        for mount in mounts_of(world, pid)
    )


def serves(world: SensorWorld, server: str) -> bool:
    """Whether a file system of this server is mounted where the job's processes see it."""
    sources = (mount.source for pid in namespaces(world) for mount in mounts_of(world, pid))
    return any(source.startswith((f"{server}:", f"[{server}]:", f"//{server}/")) for source in sources)


def used_among(world: SensorWorld, wheres: Collection[str]) -> set[str]:
    """Return those of some mounts that the job works on: a place of it lies there, or a process of it has something open there.

    No file system is asked: the kernel knows the names.
    """
    mounts = mounts_of(world, world.job)
    held = {found.where for place in places(world) if (found := mountinfo.mount_of(place, mounts)) is not None}
    used = held & set(wheres)
    heads = {f"{where.rstrip('/')}/": where for where in wheres if where not in used}
    looked_at = 0
    for pid in descendants(world, world.job):
        for path in _files_of(world, pid):
            looked_at += 1
            used |= {where for head, where in heads.items() if path.startswith(head) or path == where}
        if looked_at > MOST_OF_ALL:
            break
    return used


def _files_of(world: SensorWorld, pid: int) -> Iterator[str]:
    """Where a process is, what it runs, what it has open. To ask what it has mapped may wait for a page that never comes."""
    folder = f"{world.proc}/{pid}"
    yield _link(f"{folder}/cwd")
    yield _link(f"{folder}/exe")
    for number in names_in(f"{folder}/fd", MOST_FILES):
        yield _link(f"{folder}/fd/{number}")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
