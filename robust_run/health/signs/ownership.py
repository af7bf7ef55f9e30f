"""Ownership: whether a line of the kernel's log concerns this job, its image, or others on the same machine. Pure.

A node is judged by its own disks and its own job: what cannot be said for certain to concern the job neither takes a node out
nor stands in a verdict.
"""

from __future__ import annotations

from typing import Literal, Protocol

from robust_run.health.sensors.job.block_devices import kind_of
from robust_run.health.signs.kernel_lines import Meaning
from robust_run.health.signs.xids import class_of

Owner = Literal["job", "image", "other", "unknown"]
"""job: of the job, or of the node as a whole. image: of what is mounted for the job's processes. other: of another job, or
of none here. unknown: nothing tells."""

#: Drivers of network interfaces without hardware: of virtual machines and containers.
_VIRTUAL = ("tun", "veth", "macvtap", "ifb")


class JobOwnership(Protocol):
    """What is the job's on this node. None: that cannot be told."""

    def has_process(self, pid: int) -> bool | None:
        """Whether a process, as the kernel's log numbers it, is one of the job."""
        ...

    def has_cgroup(self, path: str) -> bool | None:
        """Whether a cgroup is the job's alone, or below it."""
        ...

    def has_gpu(self, name: str) -> bool | None:
        """Whether the job may use a GPU; empty: any of the node's."""
        ...

    def is_image(self, device: str) -> bool:
        """Whether the job's processes run in what is mounted from a device."""
        ...

    def stands_on(self, device: str) -> bool | None:
        """Whether `/`, the job's folder or one that it writes to lies on a device."""
        ...

    def mounts_from(self, server: str) -> bool:
        """Whether a file system of this server is mounted where the job's processes see it."""
        ...


def owner_of(meaning: Meaning, here: JobOwnership) -> Owner:
    """Return whose it is."""
    name = meaning.name
    if name == "memory.oom_kill":
        return _of(_kill(meaning, here))
    if name == "kernel.hung_task":
        return _of(here.has_process(meaning.number))
    if name.startswith("gpu."):
        return _of(_gpu(meaning, here))
    if name.startswith("disk."):
        return _disk(meaning.subject, here)
    if name == "mount.not_responding":
        return "job" if here.mounts_from(meaning.subject) else "other"
    if name == "network.device_hung" and meaning.driver in _VIRTUAL:
        return "other"
    return "job"  # a fault of the machine itself


def _of(is_ours: bool | None) -> Owner:
    return "unknown" if is_ours is None else "job" if is_ours else "other"


def _kill(meaning: Meaning, here: JobOwnership) -> bool | None:
    """A process id says it best; a cgroup of the job's own holds no process of others."""
    named = here.has_process(meaning.number)
    if named is not None:
        return named
    return True if meaning.cgroup and here.has_cgroup(meaning.cgroup) else None


def _gpu(meaning: Meaning, here: JobOwnership) -> bool | None:
    """A broken GPU is the job's if it may use it; what a program made wrong is the job's if that program is."""
    has = here.has_gpu(meaning.subject)
    by_program = bool(meaning.number) and class_of(meaning.number) != "device"
    if has and by_program and meaning.pid and here.has_process(meaning.pid) is False:
        return False
    return has


def _disk(device: str, here: JobOwnership) -> Owner:
    kind = kind_of(device)
    if kind == "disk":
        return "job"
    if kind == "file":
        return "image" if here.is_image(device) or here.stands_on(device) else "other"
    if kind == "passing":
        return "other"
    return _of(here.stands_on(device))
