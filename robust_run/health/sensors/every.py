"""All sensors of a node, as its settings ask for them."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.health.metrics import watching
from robust_run.health.sensors import clock_skew, disk, fsync, gpus, kernel_log, memory, mounts, pressure, stores
from robust_run.health.sensors.links import infiniband, neighbours, network, traffic
from robust_run.health.sensors.settings import SensorSettings
from robust_run.health.sensors.types import Sensor, SensorWorld


def sensors_of(settings: SensorSettings, world: SensorWorld) -> tuple[Sensor, ...]:
    """Return the sensors that are switched on. Mounts are those there now: a sensor for each."""
    singles: tuple[tuple[bool, Callable[[], Sensor]], ...] = (
        (settings.kernel_log.on, lambda: kernel_log.sensor(settings.kernel_log)),
        (settings.memory.on, lambda: memory.sensor(settings.memory)),
        (settings.gpu.on, lambda: gpus.moments_sensor(settings.gpu)),
        (settings.gpu_memory.on, lambda: gpus.counters_sensor(settings.gpu_memory)),
        (settings.network.on, lambda: network.sensor(settings.network)),
        (settings.infiniband.on, lambda: infiniband.sensor(settings.infiniband)),
        (settings.traffic.on, lambda: traffic.sensor(settings.traffic)),
        (settings.disk.on, lambda: disk.sensor(settings.disk)),
        (settings.pressure.on, lambda: pressure.sensor(settings.pressure)),
        (settings.neighbours.on, lambda: neighbours.sensor(settings.neighbours)),
        (settings.clock.on, lambda: clock_skew.sensor(settings.clock)),
        (settings.training.on, lambda: watching.sensor(settings.training)),
    )
    found = [make() for on, make in singles if on]
    found += fsync.sensors(settings.fsync, world) if settings.fsync.on else ()
    found += stores.sensors(settings.store, world) if settings.store.on else ()
    found += _mounts(settings, world) if settings.mount.on else ()
    return tuple(found)


def _mounts(settings: SensorSettings, world: SensorWorld) -> tuple[Sensor, ...]:
    try:
        return mounts.sensors(settings.mount, world)
    except OSError:  # no mountinfo: the disk sensor says so
        return ()
