"""Watches for silence: a job that trains over the network and moves next to nothing any more (ByteRobust: 10 min without RDMA
traffic; MegaScale: a complete stop starts recovery). A slow witness: hangs are seen in seconds by the tracer."""

from __future__ import annotations

import msgspec

from robust_run.health.sensors.files import names_in
from robust_run.health.sensors.links import infiniband
from robust_run.health.sensors.links.network import MOST_INTERFACES, read_link
from robust_run.health.sensors.settings import TrafficSettings
from robust_run.health.sensors.types import AbsentError, Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow


class TrafficSample(msgspec.Struct, frozen=True, kw_only=True):
    """What has gone over the network so far."""

    moved_bytes: int
    over: str
    """Over what, for people."""
    training: bool


class TrafficState(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate so far, and what was read before."""

    before: TrafficSample | None = None
    before_s: float = 0.0
    peak_bytes_per_s: float = 0.0
    levels: Levels = {}


def read(world: SensorWorld) -> TrafficSample:
    """Return what went over RDMA ports, or over network interfaces where there are none. Raises AbsentError."""
    training = world.is_training()
    try:
        ports = infiniband.read(world)
        return TrafficSample(
            moved_bytes=sum(port.traffic_bytes for port in ports.values()), over="RDMA ports", training=training
        )
    except AbsentError:
        pass
    root = f"{world.sys}/class/net"
    names = world.interfaces or tuple(name for name in names_in(root, MOST_INTERFACES) if name != "lo")
    links = [link for name in names if (link := read_link(f"{root}/{name}")) is not None]
    if not links:
        raise AbsentError("no network interface is shown")
    moved = sum(link.received_bytes + link.sent_bytes for link in links)
    return TrafficSample(moved_bytes=moved, over="network interfaces", training=training)


def judge(
    settings: TrafficSettings, state: TrafficState, sample: TrafficSample, now_s: float
) -> tuple[TrafficState, tuple[Event, ...]]:
    """Return whether the network has been silent for too long."""
    before, passed_s = state.before, now_s - state.before_s
    if before is None or passed_s <= 0 or not sample.training or sample.moved_bytes < before.moved_bytes:
        levels, events = follow(state.levels, (), now_s)
        return msgspec.structs.replace(state, before=sample, before_s=now_s, levels=levels), events
    rate = (sample.moved_bytes - before.moved_bytes) / passed_s
    peak = max(rate, state.peak_bytes_per_s)
    conditions = []
    if peak >= settings.least_peak_bytes_per_s and rate < settings.silent_share * peak:
        detail = (
            f"next to nothing goes over the {sample.over}: {rate / 1e6:.2f} MB/s, it was up to {peak / 1e6:.0f} MB/s"
        )
        conditions.append(
            Condition(
                name="network.silent",
                subject="",
                detail=detail,
                value=rate,
                limit=settings.silent_share * peak,
                hold_s=settings.silent_s,
                repeat_s=max(settings.silent_s, 30.0),
            )
        )
    levels, events = follow(state.levels, conditions, now_s)
    return TrafficState(before=sample, before_s=now_s, peak_bytes_per_s=peak, levels=levels), events


def sensor(settings: TrafficSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="traffic",
        about="a network over which next to nothing moves any more while the job trains",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=read,
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=TrafficState(),
    )
