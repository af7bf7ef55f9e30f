"""Finds out what is the job's on this node: its processes, its cgroup, its mounts and what they lie on, its GPUs."""

from __future__ import annotations

from robust_run.health.sensors import cgroups
from robust_run.health.sensors.job import job_mounts
from robust_run.health.sensors.job.lineage import ProcessFamily
from robust_run.health.sensors.job.own_gpus import of_node, used
from robust_run.health.sensors.types import SensorWorld

#: How often the job's processes are looked at, so that one that is gone is known; and how often who is in its cgroup.
LOOK_S = 2.0


class JobHere:
    """What is the job's on this node (see `ownership.JobOwnership`). What a fault may take away is read when this is made."""

    def __init__(self, world: SensorWorld) -> None:
        self._world = world
        self._family = ProcessFamily(world)
        self._sharing = cgroups.Sharing()
        self._looked_s = float("-inf")
        self._listed = of_node(world)
        self._gpus = used(self._listed, world.visible_gpus)

    def look(self, now_s: float) -> None:
        """Remember what is there now, if it is time."""
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._family.look(now_s)
            found = cgroups.find(self._world)
            self._sharing.look(self._world, found.unified or found.memory)

    @property
    def speaks_our_pids(self) -> bool:
        """Whether process ids in the kernel's log are those that /proc has."""
        return self._family.speaks_our_pids

    def has_process(self, pid: int) -> bool | None:
        """See `JobOwnership`."""
        return self._family.has(pid)

    def has_cgroup(self, path: str) -> bool | None:
        """See `JobOwnership`."""
        own = cgroups.own_paths(self._world)
        if not any(path == each or path.startswith(f"{each}/") for each in own):
            return None if not own else False
        found = cgroups.find(self._world)
        return None if self._sharing.look(self._world, found.unified or found.memory) else True

    def has_gpu(self, name: str) -> bool | None:
        """See `JobOwnership`. A driver that lists none tells nothing: then all are the job's, unless it is told which to use."""
        if not self._listed:
            return True if self._world.visible_gpus is None else None
        if self._gpus is None:
            return None
        if not name:
            return True if len(self._gpus) == len(self._listed) else None
        return name in self._gpus

    def is_image(self, device: str) -> bool:
        """See `JobOwnership`."""
        return job_mounts.is_image(self._world, device)

    def stands_on(self, device: str) -> bool | None:
        """See `JobOwnership`."""
        return job_mounts.stands_on(self._world, device)

    def mounts_from(self, server: str) -> bool:
        """See `JobOwnership`."""
        return job_mounts.serves(self._world, server)
