"""The pictures of a fleet's page: its course, rates with their intervals, bars. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from robust_run.fleet.results import CoursePoint, Rate
from robust_run.fleet.show import counted, percent
from robust_run.report.pages.charts import NARROW, WIDE
from robust_run.report.pages.markup import join
from robust_run.report.pages.words import date_time, lasted

STYLE = (
    ".fl-note{margin-top:1rem}.fl-rates td:nth-child(1){min-width:9rem}.fl-rates svg{margin-top:.3rem;min-width:90px}"
    ".fl-heat td:nth-child(1){min-width:7rem}"
    ".fl-dot{fill:var(--series-1)}.fl-line{stroke:var(--series-1);stroke-width:2.5;stroke-opacity:.55}"
    ".fl-area{fill:var(--series-1);fill-opacity:.14}.fl-step{fill:none;stroke:var(--series-1);stroke-width:2}"
    ".fl-inc{fill:var(--bad);fill-opacity:.75}"
    ".fl-h{display:inline-block;min-width:2.1rem;text-align:center;border-radius:4px;padding:0 .3rem}"
    + "".join(
        f".fl-h{level}{{background:color-mix(in srgb,var(--bad) {share}%,transparent)}}"
        for level, share in ((1, 10), (2, 22), (3, 36), (4, 52), (5, 70))
    )
)
_HIGH, _LEFT, _TOP = 150, 62, 10
_BARS_Y, _BARS_HIGH = _TOP + _HIGH + 16, 44
_WHISKER = 190


def bar(share: float) -> str:
    """Return a bar of a part of the longest one."""
    wide = max(180 * min(share, 1.0), 1.0)
    return (
        f'<svg width=180 height=12 viewBox="0 0 180 12" aria-hidden=true><rect class="bar lead" width="{wide:.1f}" '
        "height=12 rx=2 /></svg>"
    )


def whisker(rate: Rate, most: float) -> str:
    """Return a rate and its interval on a line from 0 to `most`."""

    def x(value: float) -> float:
        return 5 + (_WHISKER - 10) * min(value / most, 1.0)

    return (
        f'<svg width={_WHISKER} height=14 viewBox="0 0 {_WHISKER} 14" aria-hidden=true><path class=grid d="M5 7H{_WHISKER - 5}"/>'
        f'<path class=fl-line d="M{x(rate.low):.1f} 7H{max(x(rate.high), x(rate.low) + 1):.1f}"/>'
        f'<rect class=fl-dot x="{x(rate.per_1000) - 4:.1f}" y=3 width=8 height=8 rx=4 /></svg>'
    )


def course_chart(points: Sequence[CoursePoint]) -> str:
    """Return ETTR by stretch of time, and below it incidents; nothing where no ETTR is known.

    It is drawn twice: for wide windows, and for phones.
    """
    if all(each.ettr is None for each in points):
        return ""
    drawn = [_course(points, wide) for wide in (WIDE, NARROW)]
    return f"<div class='chart wide'>{drawn[0]}</div><div class='chart narrow'>{drawn[1]}</div>{_key(points)}"


def _course(points: Sequence[CoursePoint], wide: int) -> str:
    low = _floor(min(each.ettr for each in points if each.ettr is not None))
    most = max(each.incidents for each in points)

    def y(value: float) -> float:
        return _TOP + _HIGH * (1.0 - (value - low) / (1.0 - low))

    parts = [
        f'<path class=grid d="M{_LEFT} {y(value):.1f}h{wide}"/><text class=dim text-anchor=end x={_LEFT - 8} '
        f'y="{y(value) + 4:.1f}">{_tick(value)}</text>'
        for value in (low, (1.0 + low) / 2, 1.0)
    ]
    each_wide = wide / len(points)
    for at, each in enumerate(points):
        left, long = _LEFT + at * each_wide + 0.5, max(each_wide - 1.0, 1.0)
        if each.ettr is not None:
            top = y(each.ettr)
            parts += (
                _rect("fl-area", left, long, top, _TOP + _HIGH - top, _said(each)),
                f'<path class=fl-step d="M{left:.1f} {top:.1f}h{long:.1f}"/>',
            )
        if each.incidents:
            high = max(_BARS_HIGH * each.incidents / most, 2.0)
            parts.append(_rect("fl-inc", left, long, _BARS_Y + _BARS_HIGH - high, high, _said(each)))
    return _framed(parts, points, most, wide)


def _rect(css: str, left: float, wide: float, top: float, high: float, title: str) -> str:
    return f'<rect class={css} x="{left:.1f}" width="{wide:.1f}" y="{top:.1f}" height="{high:.1f}"><title>{title}</title></rect>'


def _framed(parts: Sequence[str], points: Sequence[CoursePoint], most: int, wide: int) -> str:
    bottom = _BARS_Y + _BARS_HIGH
    begin, end = (_day(at_s) for at_s in (points[0].begin_s, points[-1].end_s))
    labels = (
        f"<text class=dim x={_LEFT} y={bottom + 20}>{begin}</text>"
        f"<text class=dim text-anchor=end x={_LEFT + wide} y={bottom + 20}>{end}</text>"
        f"<text class=dim text-anchor=end x={_LEFT - 8} y={_BARS_Y + 10}>{most}</text>"
        f"<text class=dim text-anchor=end x={_LEFT - 8} y={bottom}>0</text>"
        f'<path class=grid d="M{_LEFT} {bottom}h{wide}"/>'
    )
    box = f"0 0 {_LEFT + wide + 6} {bottom + 26}"
    return f'<svg viewBox="{box}" role=img aria-label="ETTR over time">{labels}{join(parts)}</svg>'


def _key(points: Sequence[CoursePoint]) -> str:
    long_s = points[0].end_s - points[0].begin_s
    word = {86400.0: "day", 7 * 86400.0: "week", 3600.0: "hour"}.get(long_s, lasted(long_s))
    shown = ((f"ETTR of each {word}, by time", "'bar lead'"), ("incidents", "fl-inc"))
    return (
        "<ul class='legend small'>"
        + join(
            f"<li><svg class=swatch viewBox='0 0 12 12'><rect class={css} width=12 height=12 /></svg>{said}</li>"
            for said, css in shown
        )
        + "</ul>"
    )


def _said(point: CoursePoint) -> str:
    ettr = f"ETTR {percent(point.ettr)}" if point.ettr is not None else "no run"
    return f"{date_time(point.begin_s)[:16]}: {ettr}, {counted(point.incidents, 'incident')}, {point.run_s / 3600:,.1f} h of runs"


def _floor(least: float) -> float:
    """Return where the picture begins: 0 %, or a round share below all that is shown, at least 0.1 % below 100 %."""
    for lost in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        if 1.0 - least <= lost:
            return 1.0 - lost
    return 0.0


def _tick(value: float) -> str:
    digits = 0 if math.isclose(value * 100, round(value * 100), abs_tol=1e-6) else 2
    return f"{value * 100:.{digits}f}\u202f%"


def _day(at_s: float) -> str:
    return date_time(at_s)[:10]
