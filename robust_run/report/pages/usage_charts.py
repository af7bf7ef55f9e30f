"""How full, busy and hot nodes were, drawn over the life of a job, on the axis of the course of ETTR. Pure.

A line for each node where there are few; of many a band from the lowest to the highest, the median, and the name of the odd one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from robust_run.report.pages.charts import LEFT, NARROW, RIGHT, WIDE, marked_incidents
from robust_run.report.pages.markup import join, section, text
from robust_run.report.pages.types import AttemptTimes
from robust_run.report.pages.words import clock_time
from robust_run.report.types import Incident
from robust_run.report.usage import FEW_NODES, KEPT, NodeSpread, UsagePoint

_HIGH, _TOP = 84, 14
#: Nothing is drawn across a time of which nothing is known.
GAP_S = 60.0
#: Numbers of attempts are written so far apart; more attempts than these are not marked.
_APART, MOST_ATTEMPTS = 26.0, 200


class _Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What one picture is of."""

    name: str
    title: str
    unit: str = "\u202f%"
    odd: str = "highest"
    """Which node is worth a name: the highest or the lowest."""


_CHARTS = (
    _Chart(name="memory_used_percent", title="Memory"),
    _Chart(name="gpu_memory_percent", title="GPU memory, fullest GPU of a node"),
    _Chart(name="gpu_busy_percent", title="GPU busy, mean of a node", odd="lowest"),
    _Chart(name="gpu_celsius", title="GPU temperature, hottest of a node", unit="\u202f°C"),
    _Chart(name="cpu_percent", title="CPU"),
)

_Point = tuple[UsagePoint, NodeSpread]


def usage(
    points: Sequence[UsagePoint],
    begin_s: float,
    end_s: float,
    attempts: Sequence[AttemptTimes],
    incidents: Sequence[Incident],
) -> str:
    """Return the pictures; nothing where nothing is known of the time from `begin_s` to `end_s`."""
    shown = [point for point in points if point.begin_s < end_s and point.end_s > begin_s]
    if not shown or end_s <= begin_s:
        return ""
    hosts = _hosts(shown)
    marks = marked_incidents(incidents, begin_s, end_s)
    starts = [each for each in attempts[-MOST_ATTEMPTS:] if each.number and begin_s <= each.ordered_s <= end_s]
    drawn = []
    for chart in _CHARTS:
        known = [(point, point.spreads[chart.name]) for point in shown if chart.name in point.spreads]
        if known:
            drawn.append(_figure(chart, known, hosts, begin_s, end_s, starts, marks))
    title = "Memory and GPUs" if any("gpu_celsius" in point.spreads for point in shown) else "Memory and CPU"
    return section("usage", title, f"<div class=usage>{join(drawn)}</div>", _key(hosts, bool(starts), bool(marks)))


def _hosts(points: Sequence[UsagePoint]) -> tuple[str, ...]:
    """Return the nodes that have lines; none where there are too many."""
    spreads = [spread for point in points for name, spread in point.spreads.items() if name in KEPT]
    hosts = dict.fromkeys(host for spread in spreads for host in spread.nodes)
    return tuple(sorted(hosts)) if all(spread.nodes for spread in spreads) and len(hosts) <= FEW_NODES else ()


def _figure(
    chart: _Chart,
    known: Sequence[_Point],
    hosts: Sequence[str],
    begin_s: float,
    end_s: float,
    starts: Sequence[AttemptTimes],
    marks: Sequence[Incident],
) -> str:
    top = max(100.0, *(spread.high for _, spread in known))
    said = _said(chart, known)

    def picture(wide: int) -> str:
        def x(at_s: float) -> float:
            return LEFT + wide * (min(max(at_s, begin_s), end_s) - begin_s) / (end_s - begin_s)

        def y(value: float) -> float:
            return _TOP + _HIGH * (1.0 - value / top)

        grid = join(
            f'<path class=grid d="M{LEFT} {y(value):.1f}h{wide}"/><text class=dim text-anchor=end x={LEFT - 8} '
            f'y="{y(value) + 4:.1f}">{value:.0f}</text>'
            for value in (0.0, top / 2, top)
        )
        data = join(_lines(known, hosts, x, y)) if hosts else _band(known, x, y)
        bottom = _TOP + _HIGH + 18
        return (
            f'<svg viewBox="0 0 {LEFT + wide + RIGHT} {bottom + 2}" role=img aria-label="{text(chart.title)}: {text(said)}">{grid}'
            f"{_starts(starts, x)}{_marks(marks, x)}{data}{_dot(chart, known, x, y)}"
            f"<text class=dim x={LEFT} y={bottom}>{clock_time(begin_s)}</text>"
            f"<text class=dim text-anchor=end x={LEFT + wide} y={bottom}>{clock_time(end_s)}</text></svg>"
        )

    newest = known[-1][1]
    value = newest.high if chart.odd == "highest" else newest.low
    return (
        f"<figure><figcaption><span class=label>{chart.title}</span> <strong>{value:.0f}{chart.unit}</strong> "
        f"<small class=dim>{text(said, 300)}</small></figcaption>"
        f"<div class='chart wide'>{picture(WIDE)}</div><div class='chart narrow'>{picture(NARROW)}</div></figure>"
    )


def _said(chart: _Chart, known: Sequence[_Point]) -> str:
    """Return which node the newest value is of, and the peak so far. (The least ever is that of a start: no news.)"""
    newest = known[-1][1]
    is_high, parts = chart.odd == "highest", []
    if len(newest.nodes) != 1:
        parts += [f"{chart.odd}, on {newest.high_node if is_high else newest.low_node}"]
        parts += [f"median {newest.middle:.0f}{chart.unit}"]
    if is_high:
        point, most = _peak(known)
        where = f" on {most.high_node}" if len(most.nodes) != 1 else ""
        parts += [f"peak {most.high:.0f}{chart.unit}{where} at {clock_time(point.begin_s)}"]
    return "; ".join(parts)


def _peak(known: Sequence[_Point]) -> _Point:
    return max(known, key=lambda each: each[1].high)


def _runs(known: Iterable[tuple[UsagePoint, float]]) -> list[list[tuple[float, float]]]:
    """Return stretches without a gap: times and values, each from its first moment to its last."""
    runs: list[list[tuple[float, float]]] = []
    last_s = float("-inf")
    for point, value in known:
        if point.begin_s - last_s > GAP_S:
            runs.append([(point.begin_s, value)])
        runs[-1] += [((point.begin_s + point.end_s) / 2, value), (point.end_s, value)]
        if len(runs[-1]) > 3:
            del runs[-1][-3]  # only the newest point goes on to its end
        last_s = point.end_s
    return runs


def _path(run: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return "L".join(f"{x(at_s):.1f} {y(value):.1f}" for at_s, value in run)


def _lines(
    known: Sequence[_Point], hosts: Sequence[str], x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    drawn = []
    for index, host in enumerate(hosts):
        own = [(point, spread.nodes[host]) for point, spread in known if host in spread.nodes]
        path = join(f"M{_path(run, x, y)}" for run in _runs(own))
        drawn.append(
            f'<path class="node n{index + 1}" d="{path}"><title>{text(host, 80)}</title></path>' if path else ""
        )
    return drawn


def _band(known: Sequence[_Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    low, middle, high = (
        _runs([(point, value) for point, spread in known for value in (getattr(spread, name),)])
        for name in ("low", "middle", "high")
    )
    areas = join(f"M{_path(over, x, y)}L{_path(under[::-1], x, y)}Z" for over, under in zip(high, low, strict=True))
    median = join(f"M{_path(run, x, y)}" for run in middle)
    return f'<path class=band d="{areas}"/><path class=cum d="{median}"/>'


def _dot(chart: _Chart, known: Sequence[_Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """Return the mark of the peak, or of the newest value where the lowest is the odd one."""
    point, spread = _peak(known) if chart.odd == "highest" else known[-1]
    value, node = (spread.high, spread.high_node) if chart.odd == "highest" else (spread.low, spread.low_node)
    at = x((point.begin_s + point.end_s) / 2)
    title = text(f"{value:.0f}{chart.unit} on {node}")
    return (
        f'<rect class=odd x="{at - 3:.1f}" y="{y(value) - 3:.1f}" width=6 height=6 rx=3><title>{title}</title></rect>'
    )


def _starts(starts: Sequence[AttemptTimes], x: Callable[[float], float]) -> str:
    drawn, last = [], float("-inf")
    for each in starts:
        at = x(each.ordered_s)
        drawn.append(f'<path class=start d="M{at:.1f} {_TOP}v{_HIGH}"><title>attempt {each.number}</title></path>')
        if at - last >= _APART:
            drawn.append(f'<text class="dim tiny" text-anchor=middle x="{at:.1f}" y={_TOP - 3}>{each.number}</text>')
            last = at
    return join(drawn)


def _marks(marks: Sequence[Incident], x: Callable[[float], float]) -> str:
    return join(
        f'<path class=mark d="M{x(each.onset_s):.1f} {_TOP}v{_HIGH}"><title>incident {each.id}</title></path>'
        for each in marks
    )


def _key(hosts: Sequence[str], has_starts: bool, has_marks: bool) -> str:
    def row(path: str, said: str) -> str:
        return f"<li><svg class=swatch viewBox='0 0 12 12'>{path}</svg>{said}</li>"

    rows = [
        row(f"<path class='node n{index + 1}' d='M0 6h12'/>", text(host, 80))
        for index, host in enumerate(hosts)
        if len(hosts) > 1
    ]
    if not hosts:
        rows += [
            row("<rect class=band width=12 height=12 />", "lowest to highest node"),
            row("<path class=cum d='M0 6h12'/>", "median of nodes"),
        ]
    if has_starts:
        rows.append(row("<path class=start d='M6 0v12'/>", "an attempt begins"))
    if has_marks:
        rows.append(row("<path class=mark d='M6 0v12'/>", "incident"))
    return f"<ul class='legend small'>{join(rows)}</ul>" if rows else ""
