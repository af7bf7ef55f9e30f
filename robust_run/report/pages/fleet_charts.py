"""Nodes against their peers, as small multiples: one picture for each number by which they are compared. Pure.

Each shows how far nodes lie apart (a band from the lowest to the highest), their median, and the line of a node that stands out,
from the moment on at which it was named. The number that it was named for comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from robust_run.report.pages.markup import join, section, text
from robust_run.report.pages.usage_charts import GAP_S
from robust_run.report.pages.words import clock_time
from robust_run.report.usage import NodeSpread, UsagePoint

_WIDE, _HIGH, _TOP = 240, 56, 4
#: With fewer nodes there is nobody to be compared with: none is named.
_FEWEST = 3

_BYTES, _PERCENT = "B/s", "\u202f%"
NUMBERS: dict[str, tuple[str, str]] = {
    "gpu_sm_clock_mhz": ("GPU clock, slowest of a node", " MHz"),
    "gpu_power_watts": ("GPU power, mean of a node", " W"),
    "gpu_busy_percent": ("GPU busy, mean of a node", _PERCENT),
    "gpu_celsius": ("GPU temperature, hottest of a node", "\u202f°C"),
    "gpu_memory_percent": ("GPU memory, fullest of a node", _PERCENT),
    "gpu_pcie_lanes": ("PCIe lanes, narrowest of a node", ""),
    "nvlink_bytes_per_s": ("NVLink traffic", _BYTES),
    "nvlink_errors_per_s": ("NVLink errors", "/s"),
    "cpu_percent": ("CPU", _PERCENT),
    "cpu_pressure_percent": ("Work that waited for a CPU", _PERCENT),
    "cpu_throttled_percent": ("Held back by a CPU limit", _PERCENT),
    "memory_used_percent": ("Memory", _PERCENT),
    "memory_pressure_percent": ("All work waited for memory", _PERCENT),
    "loader_wait_s": ("Wait for the next batch", " s"),
    "rdma_bytes_per_s": ("Network traffic", _BYTES),
    "rdma_retries_per_s": ("RDMA packets sent again", "/s"),
    "rdma_congestion_per_s": ("RDMA notes of congestion", "/s"),
    "rdma_wait_per_s": ("RDMA ticks of waiting to send", "/s"),
    "pfc_tx_packets_per_s": ("Requests for a pause (PFC)", "/s"),
    "tcp_resent_per_s": ("TCP segments sent again", "/s"),
    "network_drops_per_s": ("Packets dropped or broken", "/s"),
    "disk_bytes_per_s": ("Disk traffic", _BYTES),
    "disk_wait_ms": ("A disk's request takes", " ms"),
    "io_pressure_percent": ("All work waited for I/O", _PERCENT),
}
"""By the name of a number: what it is, and its unit. In the order in which they are drawn."""

_Known = Sequence[tuple[UsagePoint, NodeSpread]]


class _Odd(msgspec.Struct, frozen=True):
    """A node that stands out now."""

    node: str
    name: str
    since_s: float


def fleet(points: Sequence[UsagePoint], begin_s: float, end_s: float) -> str:
    """Return the pictures of the time from `begin_s` to `end_s`; nothing where fewer than three nodes are known."""
    shown = [point for point in points if point.begin_s < end_s and point.end_s > begin_s]
    if end_s <= begin_s or not shown or not _are_several(shown):
        return ""
    odd = _odd(shown)
    first = {each.name: at for at, each in enumerate(odd)}
    names = [name for name in NUMBERS if any(name in point.spreads for point in shown)]
    names.sort(key=lambda name: first.get(name, len(odd)))
    drawn = [
        _figure(name, [(p, p.spreads[name]) for p in shown if name in p.spreads], odd, begin_s, end_s) for name in names
    ]
    note = "; ".join(
        f"{each.node} stands out by {NUMBERS.get(each.name, (each.name, ''))[0]}, named at {clock_time(each.since_s)}"
        for each in odd
    )
    key = "The band reaches from the lowest to the highest node, the line in it is their median."
    return section(
        "fleet",
        "Nodes against their peers",
        f"<div class=multiples>{join(drawn)}</div>",
        note=text(f"{note or 'No node stands out'}. {key}", 600),
    )


def _are_several(points: Sequence[UsagePoint]) -> bool:
    """Whether there are enough nodes to be compared: where each has a line that is known, else the extremes have names."""
    hosts = {
        host
        for point in points
        for spread in point.spreads.values()
        for host in (*spread.nodes, spread.low_node, spread.high_node)
    }
    return len(hosts) >= _FEWEST


def _odd(points: Sequence[UsagePoint]) -> list[_Odd]:
    """Return the nodes that stand out at the end, each with when that began."""
    found = []
    for node, name in points[-1].odd.items():
        since_s = points[-1].begin_s
        for point in reversed(points):
            if node not in point.odd:
                break
            since_s = point.begin_s
        found.append(_Odd(node, name, since_s))
    return found


def _figure(name: str, known: _Known, odd: Sequence[_Odd], begin_s: float, end_s: float) -> str:
    title, unit = NUMBERS[name]
    low, high = min(spread.low for _, spread in known), max(spread.high for _, spread in known)
    low = 0.0 if low < 0.7 * high else min(low, 0.8 * high)  # a few per cent of noise are not drawn as mountains
    top = high if high > low else low + 1.0

    def x(at_s: float) -> float:
        return _WIDE * (min(max(at_s, begin_s), end_s) - begin_s) / (end_s - begin_s)

    def y(value: float) -> float:
        return _TOP + _HIGH * (1.0 - (value - low) / (top - low))

    newest = known[-1][1]
    own = [each for each in odd if each.name == name]
    said = f"{text(title)} <strong>{_short(newest.middle, unit)}</strong>"
    for each in own:
        value = newest.nodes.get(each.node)
        said = f"{text(title)}: {text(each.node, 80)} <strong>{'?' if value is None else _short(value, unit)}</strong>, median {_short(newest.middle, unit)}"
    lines = join(_line(known, each, x, y) for each in odd)
    marks = join(f'<path class=since d="M{x(each.since_s):.1f} {_TOP}v{_HIGH}"/>' for each in own)
    return (
        f"<figure{' class=out' if own else ''}><figcaption>{said}</figcaption>"
        f'<svg viewBox="0 0 {_WIDE} {_TOP + _HIGH + 2}" role=img aria-label="{text(title)}">'
        f'<path class=grid d="M0 {_TOP + _HIGH}h{_WIDE}"/>{_band(known, x, y)}{marks}{lines}</svg></figure>'
    )


def _runs(known: Iterable[tuple[UsagePoint, float]]) -> list[list[tuple[float, float]]]:
    """Return stretches without a gap: times and values, each from its first moment to its last."""
    runs: list[list[tuple[float, float]]] = []
    last_s = float("-inf")
    for point, value in known:
        if point.begin_s - last_s > GAP_S:
            runs.append([(point.begin_s, value)])
        runs[-1].append((point.end_s, value))
        last_s = point.end_s
    return runs


def _path(run: Iterable[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return "L".join(f"{x(at_s):.1f} {y(value):.1f}" for at_s, value in run)


def _band(known: _Known, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    lows, middles, highs = (
        _runs([(point, value) for point, spread in known for value in (getattr(spread, side),)])
        for side in ("low", "middle", "high")
    )
    areas = join(f"M{_path(over, x, y)}L{_path(under[::-1], x, y)}Z" for over, under in zip(highs, lows, strict=True))
    median = join(f"M{_path(run, x, y)}" for run in middles)
    return f'<path class=band d="{areas}"/><path class=middle d="{median}"/>'


def _line(known: _Known, odd: _Odd, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    own = [(point, spread.nodes[odd.node]) for point, spread in known if odd.node in spread.nodes]
    path = join(f"M{_path(run, x, y)}" for run in _runs(own))
    return f'<path class=line d="{path}"><title>{text(odd.node, 80)}</title></path>' if path else ""


def _short(value: float, unit: str) -> str:
    if unit == _BYTES:
        for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if value >= factor:
                return f"{value / factor:.3g} {prefix}{unit}"
        return f"{value:.3g} {unit}"
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
