"""The words of the sensors: what they look at (`SensorWorld`), what they are (`Sensor`), and what they say (`Event`).

A sensor is two functions. `read(world)` is thin input and output and may block or fail; `judge(state, sample, now_s)` is
pure and makes events of what was read. Nothing in a sample is older or newer than one reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from robust_run.health.sensors.links.ethtool import DriverStatistics
from robust_run.health.types import Event, EventKind

__all__ = ["AbsentError", "Condition", "Event", "EventKind", "Levels", "Sensor", "SensorWorld", "Standing"]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that lasts, and is wrong at this very reading (see `levels`)."""

    name: str
    subject: str
    detail: str
    value: float | None = None
    limit: float | None = None
    hold_s: float = 0.0
    """Nothing is said before it has lasted so long: what heals by itself sooner is tolerated."""
    repeat_s: float = 30.0
    """While it lasts it is said again so often: rules count alerts (a switch is down: 2 alerts, 30 s apart)."""


class Standing(msgspec.Struct, frozen=True):
    """How long a condition has lasted, and when it was last said."""

    since_s: float
    said_s: float | None
    condition: Condition


Levels = Mapping[tuple[str, str], Standing]
"""All conditions that last, by name and subject."""


class AbsentError(Exception):
    """What a sensor watches is not on this machine. Said once, and no fault; the sensor ends."""


@dataclass(frozen=True, kw_only=True)
class SensorWorld:
    """Where everything is. Tests hand over trees of their own."""

    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    kmsg: str = "/dev/kmsg"
    cgroups: str = "/sys/fs/cgroup"
    nvml_library: str = ""
    """Path of libnvidia-ml; empty: the loader finds it."""
    pid: int = 0
    """The process whose cgroups and mounts are watched, and whose descendants are the job; 0: this one."""
    visible_gpus: str | None = None
    """CUDA_VISIBLE_DEVICES of the job; None: it is not set."""
    image: str = ""
    """What the job's processes run in that is mounted for them, for people: `image hf.sqsh`. Empty: nothing is."""
    folders: tuple[str, ...] = ()
    """What the job writes to: their file systems are watched for space, errors and slowness."""
    python: tuple[str, ...] = ()
    """Where the workers' Python and its packages are."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces to watch; empty: those that are hardware, else those that were up first."""
    driver_statistics: Callable[[str], Mapping[str, int]] = field(default_factory=DriverStatistics)
    """Of a network interface, by name (`ethtool -S`)."""
    stores: tuple[str, ...] = ()
    """URLs of stores whose operations are timed."""
    is_training: Callable[[], bool] = lambda: True
    """Whether silence on the network is odd."""
    reports: Callable[[], tuple[str, ...]] = lambda: ()
    """Folders of the report files of the attempt that runs (`robust_run.health.metrics`)."""
    event_folders: Callable[[], tuple[str, ...]] = lambda: ()
    """Folders to look through for event files of TensorBoard and wandb."""
    began_unix_s: Callable[[], float] = lambda: 0.0
    """When the attempt that runs began: what event files say of the time before is another attempt's."""

    @property
    def job(self) -> int:
        """The process whose descendants are the job."""
        return self.pid or os.getpid()

    @property
    def process(self) -> str:
        """The folder in /proc of the process that is watched."""
        return f"{self.proc}/{self.pid or 'self'}"


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """One thing that is watched."""

    name: str
    """A word, the first part of most of its events' names."""
    about: str
    """A plain sentence: what it watches, and why."""
    interval_s: float
    """Between the end of one reading and the start of the next."""
    timeout_s: float
    """A reading that takes longer is an alert by itself: `NAME.hung`."""
    read: Callable[[SensorWorld], Any]
    """Return a sample. Raises AbsentError, OSError."""
    judge: Callable[[Any, Any, float], tuple[Any, tuple[Event, ...]]]
    """(state, sample, now in monotonic seconds) to (state, events). Pure."""
    start: Any
    """The first state."""
    open_s: float = 0.0
    """What the first reading may take beyond `timeout_s`: it opens what is read (NVML without persistence mode: a minute)."""
    subject: str = ""
    """Of what, where several sensors share a name: each mount has one of its own, so that a hung one hides no other."""
