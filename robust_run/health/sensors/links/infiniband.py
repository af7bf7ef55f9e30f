"""Watches InfiniBand and RoCE ports: state, physical state, speed, and the counters that grow on a bad cable.

Reads `/sys/class/infiniband/*/ports/*`. Counters as in the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from robust_run.health.sensors.files import names_in, number, word
from robust_run.health.sensors.settings import InfinibandSettings
from robust_run.health.sensors.types import AbsentError, Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

MOST_PORTS = 64
#: Errors of the link; congestion (port_xmit_wait, ECN) is daily business and not among them.
ERROR_COUNTERS = (
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
)
_DOWNED = "link_downed"
#: Nothing wrong by themselves, but much of it on one node of many alike is a sign. Names of `hw_counters` are those of mlx5.
RETRY_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)
CONGESTION_COUNTERS = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_WAITED = "port_xmit_wait"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port at one moment."""

    active: bool
    state: str
    """As the kernel says it: `4: ACTIVE`."""
    rate: str
    """`400 Gb/sec (4X NDR)`."""
    downs: int
    errors: Mapping[str, int]
    traffic_bytes: int
    """Sent and received."""
    retries: int | None = None
    """Packets that came out of order, were lost or were sent again; None: the port does not count them."""
    congestion: int | None = None
    """Notes of congestion that it sent or obeyed, packets that were marked."""
    waits: int | None = None
    """Ticks in which it had something to send and was not let."""


class PortsState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before."""

    watched: Mapping[str, str] | None = None
    """The ports that were active at the first reading, and their rates then."""
    before: Mapping[str, Port] = {}
    before_s: float = 0.0
    levels: Levels = {}


def read(world: SensorWorld) -> dict[str, Port]:
    """Return all ports by `device/port`. Raises AbsentError where none is."""
    root = f"{world.sys}/class/infiniband"
    found = {}
    for device in names_in(root, MOST_PORTS):
        for port in names_in(f"{root}/{device}/ports", MOST_PORTS):
            found[f"{device}/{port}"] = _read_port(f"{root}/{device}/ports/{port}")
    if not found:
        raise AbsentError("no InfiniBand or RoCE device is shown")
    return dict(list(found.items())[:MOST_PORTS])


def _read_port(folder: str) -> Port:
    state, physical = word(f"{folder}/state"), word(f"{folder}/phys_state")
    counters = f"{folder}/counters"
    # in words of 4 bytes
    traffic = sum(number(f"{counters}/{name}") or 0 for name in ("port_xmit_data", "port_rcv_data"))
    return Port(
        active=state.startswith("4"),
        state=", ".join(filter(None, (state, physical)))[:80],
        rate=word(f"{folder}/rate")[:80],
        downs=number(f"{counters}/{_DOWNED}") or 0,
        errors={name: count for name in ERROR_COUNTERS if (count := number(f"{counters}/{name}")) is not None},
        traffic_bytes=4 * traffic,
        retries=_sum(f"{folder}/hw_counters", RETRY_COUNTERS),
        congestion=_sum(f"{folder}/hw_counters", CONGESTION_COUNTERS),
        waits=number(f"{counters}/{_WAITED}"),
    )


def _sum(folder: str, names: tuple[str, ...]) -> int | None:
    counts = [count for name in names if (count := number(f"{folder}/{name}")) is not None]
    return sum(counts) if counts else None


def judge(
    settings: InfinibandSettings, state: PortsState, sample: Mapping[str, Port], now_s: float
) -> tuple[PortsState, tuple[Event, ...]]:
    """Return what is wrong with the ports that were active at first."""
    watched = state.watched
    if watched is None:
        watched = {name: port.rate for name, port in sample.items() if port.active}
    conditions = list(_states(settings, watched, sample))
    events: list[Event] = []
    if state.before and now_s > state.before_s:
        events += _flaps(watched, state.before, sample, now_s)
        conditions += _errors(settings, watched, state.before, sample, now_s - state.before_s)
    levels, said = follow(state.levels, conditions, now_s)
    return PortsState(watched=watched, before=sample, before_s=now_s, levels=levels), (*events, *said)


def _states(
    settings: InfinibandSettings, watched: Mapping[str, str], sample: Mapping[str, Port]
) -> Iterator[Condition]:
    for name, rate in watched.items():
        port = sample.get(name)
        if port is None or not port.active:
            detail = f"the port is not active ({port.state})" if port is not None else "the port is gone"
            yield Condition(name="network.link_down", subject=name, detail=detail, repeat_s=settings.repeat_s)
        elif port.rate != rate:
            detail = f"the port runs at {port.rate}, at first it was {rate}"
            yield Condition(name="network.link_slow", subject=name, detail=detail, repeat_s=300.0)


def _flaps(
    watched: Mapping[str, str], before: Mapping[str, Port], sample: Mapping[str, Port], now_s: float
) -> Iterator[Event]:
    for name in watched:
        old, port = before.get(name), sample.get(name)
        if old is not None and port is not None and old.active and port.active and port.downs > old.downs:
            detail = "the port went down and came back"
            yield Event(name="network.link_flap", kind="alert", subject=name, detail=detail, at_s=now_s)


def _errors(
    settings: InfinibandSettings,
    watched: Mapping[str, str],
    before: Mapping[str, Port],
    sample: Mapping[str, Port],
    passed_s: float,
) -> Iterator[Condition]:
    for name in watched:
        old, port = before.get(name), sample.get(name)
        if old is None or port is None:
            continue
        rates = {kind: (count - old.errors.get(kind, count)) / passed_s for kind, count in port.errors.items()}
        worst = max(rates, key=lambda kind: rates[kind], default="")
        if worst and rates[worst] > settings.errors_per_s:
            yield Condition(
                name="network.errors",
                subject=name,
                detail=f"{rates[worst]:.1f} {worst} a second (limit {settings.errors_per_s:g})",
                value=rates[worst],
                limit=settings.errors_per_s,
                hold_s=settings.errors_hold_s,
            )


def sensor(settings: InfinibandSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="infiniband",
        about="InfiniBand and RoCE ports: not active, slower than at first, flapping, with errors",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=read,
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=PortsState(),
    )
