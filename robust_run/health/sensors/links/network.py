"""Watches network interfaces: a link that is down or flaps, errors, drops, and TCP segments sent again.

Reads `/sys/class/net/*` and `/proc/net/snmp` (of the process that is watched: its network namespace).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from robust_run.health.sensors.files import names_in, number, text_or_none, word
from robust_run.health.sensors.links.ethtool import Pauses, pauses
from robust_run.health.sensors.settings import NetworkSettings
from robust_run.health.sensors.types import AbsentError, Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

MOST_INTERFACES = 64
#: Interfaces that come and go with containers and tunnels.
_PASSING = ("lo", "docker", "veth", "br-", "cni", "cali", "flannel", "virbr", "ifb", "tun", "tap", "vxlan", "dummy")


class InterfaceLink(msgspec.Struct, frozen=True, kw_only=True):
    """One interface at one moment."""

    up: bool
    """Whether it has a carrier and is switched on."""
    is_device: bool = False
    """Whether hardware is behind it."""
    downs: int = 0
    """How often it has lost its carrier."""
    errors: int = 0
    dropped: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    pauses: Pauses | None = None
    """Frames of priority flow control; None: the driver does not count them."""


class NetworkSample(msgspec.Struct, frozen=True, kw_only=True):
    """All interfaces at one moment, and the node's TCP counters."""

    links: Mapping[str, InterfaceLink]
    named: tuple[str, ...] = ()
    """Those that were asked for."""
    segments: int = 0
    """TCP segments sent, those sent again included."""
    resent: int = 0


class NetworkState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before."""

    watched: tuple[str, ...] | None = None
    """Chosen at the first reading: what was down then is not in use."""
    before: NetworkSample | None = None
    before_s: float = 0.0
    levels: Levels = {}


def read(world: SensorWorld) -> NetworkSample:
    """Return all interfaces. Raises AbsentError where none is."""
    root = f"{world.sys}/class/net"
    names = names_in(root, MOST_INTERFACES * 4)
    if not names and not world.interfaces:
        raise AbsentError(f"no network interfaces are shown in {root}")
    wanted = world.interfaces or tuple(name for name in names if not name.startswith(_PASSING))
    links = {name: link for name in wanted[:MOST_INTERFACES] if (link := read_link(f"{root}/{name}")) is not None}
    for name, link in links.items():
        if link.is_device and (found := pauses(world.driver_statistics(name))) is not None:
            links[name] = msgspec.structs.replace(link, pauses=found)
    segments, resent = _tcp(text_or_none(f"{world.process}/net/snmp") or "")
    return NetworkSample(links=links, named=world.interfaces, segments=segments, resent=resent)


def read_link(folder: str) -> InterfaceLink | None:
    """Return one interface, None if it is not there."""
    state = word(f"{folder}/operstate")
    if not state:
        return None
    counts = {
        name: number(f"{folder}/statistics/{name}") or 0
        for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_bytes", "tx_bytes")
    }
    carrier = number(f"{folder}/carrier")  # cannot be read while the interface is switched off
    return InterfaceLink(
        up=state in ("up", "unknown") and carrier != 0,
        is_device=os.path.exists(f"{folder}/device"),
        downs=number(f"{folder}/carrier_down_count") or 0,
        errors=counts["rx_errors"] + counts["tx_errors"],
        dropped=counts["rx_dropped"] + counts["tx_dropped"],
        received_bytes=counts["rx_bytes"],
        sent_bytes=counts["tx_bytes"],
    )


def _tcp(text: str) -> tuple[int, int]:
    """Return segments sent in all, and sent again, from /proc/net/snmp."""
    rows = [line.split() for line in text.split("\n") if line.startswith("Tcp:")]
    if len(rows) != 2:
        return 0, 0
    row = dict(zip(*rows, strict=False))
    try:
        return int(row["OutSegs"]) + int(row["RetransSegs"]), int(row["RetransSegs"])
    except (KeyError, ValueError):
        return 0, 0


def judge(
    settings: NetworkSettings, state: NetworkState, sample: NetworkSample, now_s: float
) -> tuple[NetworkState, tuple[Event, ...]]:
    """Return what is wrong with the links that are in use."""
    watched = _choose(sample) if state.watched is None else state.watched
    passed_s = now_s - state.before_s
    conditions = [_down(settings, name) for name in watched if not _is_up(sample, name)]
    events: list[Event] = []
    if state.before is not None and passed_s > 0:
        events += _flaps(watched, state.before, sample, now_s)
        conditions += _rates(settings, watched, state.before, sample, passed_s)
    levels, said = follow(state.levels, conditions, now_s)
    return NetworkState(watched=watched, before=sample, before_s=now_s, levels=levels), (*events, *said)


def _choose(sample: NetworkSample) -> tuple[str, ...]:
    """Those that were asked for; else hardware that is up; else, in a container, all that is up."""
    if sample.named:
        return sample.named
    up = [name for name, link in sample.links.items() if link.up]
    return tuple(name for name in up if sample.links[name].is_device) or tuple(up)


def _is_up(sample: NetworkSample, name: str) -> bool:
    link = sample.links.get(name)
    return link is not None and link.up


def _down(settings: NetworkSettings, name: str) -> Condition:
    return Condition(
        name="network.link_down",
        subject=name,
        detail="the link is down",
        hold_s=settings.down_hold_s,
        repeat_s=settings.repeat_s,
    )


def _flaps(watched: tuple[str, ...], before: NetworkSample, sample: NetworkSample, now_s: float) -> Iterator[Event]:
    """A link that went down and came up between two readings."""
    for name in watched:
        old, link = before.links.get(name), sample.links.get(name)
        if old is None or link is None or not (old.up and link.up) or link.downs <= old.downs:
            continue
        times = link.downs - old.downs
        detail = f"the link went down and came back {times} time{'s' if times > 1 else ''}"
        yield Event(name="network.link_flap", kind="alert", subject=name, detail=detail, at_s=now_s, value=float(times))


def _rates(
    settings: NetworkSettings, watched: tuple[str, ...], before: NetworkSample, sample: NetworkSample, passed_s: float
) -> Iterator[Condition]:
    for name in watched:
        old, link = before.links.get(name), sample.links.get(name)
        if old is None or link is None:
            continue
        errors = (link.errors - old.errors) / passed_s
        dropped = (link.dropped - old.dropped) / passed_s
        if errors > settings.errors_per_s:
            yield _rate("network.errors", name, "errors", errors, settings.errors_per_s, settings.errors_hold_s)
        if dropped > settings.dropped_per_s:
            yield _rate(
                "network.drops", name, "dropped packets", dropped, settings.dropped_per_s, settings.errors_hold_s
            )
    sent = sample.segments - before.segments
    share = (sample.resent - before.resent) / sent if sent > 0 else 0.0
    if share > settings.retransmitted_share and sent / passed_s >= settings.least_segments_per_s:
        yield Condition(
            name="network.retransmits",
            subject="",
            detail=f"{share:.0%} of the TCP segments are sent again (limit {settings.retransmitted_share:.0%})",
            value=share,
            limit=settings.retransmitted_share,
            hold_s=settings.retransmit_hold_s,
        )


def _rate(name: str, subject: str, what: str, value: float, limit: float, hold_s: float) -> Condition:
    detail = f"{value:.0f} {what} a second (limit {limit:g})"
    return Condition(name=name, subject=subject, detail=detail, value=value, limit=limit, hold_s=hold_s)


def sensor(settings: NetworkSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="network",
        about="network links in use: down, flapping, with errors or drops; TCP segments that have to be sent again",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=read,
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=NetworkState(),
    )
