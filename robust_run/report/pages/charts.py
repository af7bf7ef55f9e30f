"""The two pictures of time on a job's page: the course of ETTR, and a bar split by kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from robust_run.report.pages.ettr import SPAN_WORDS, EttrPoint, course, seconds_by_kind
from robust_run.report.pages.markup import join
from robust_run.report.pages.types import LifeSpan, SpanKind
from robust_run.report.pages.words import clock_time, lasted, percent
from robust_run.report.types import Incident

LEFT, RIGHT, _TOP, _HIGH = 46, 54, 10, 150
#: Of the line itself: in a window, and on a phone, where a pixel of the picture is one of the screen.
WIDE, NARROW = 900, 270
_STRIP_Y, _STRIP_HIGH = _TOP + _HIGH + 14, 14
#: Marks of incidents, and stretches in the strip; more would be narrower than a pixel.
MOST_MARKS = 300
MOST_STRETCHES = 900


def ettr_chart(spans: Sequence[LifeSpan], incidents: Sequence[Incident]) -> str:
    """Return both ratios over the life of the job, and below what each moment was spent on; nothing without a life.

    It is drawn twice: for wide windows and for phones, on which a wide picture would be cut off or too small to read.
    """
    points = course(spans)
    if not points:
        return ""
    long = spans[-1].end_s - spans[0].begin_s > 3600.0
    marks = marked_incidents(incidents, spans[0].begin_s, spans[-1].end_s)
    key = (
        "<ul class='legend small'><li><svg class=swatch viewBox='0 0 12 12'><path class=cum d='M0 6h12'/></svg>since the beginning</li>"
        + (
            "<li><svg class=swatch viewBox='0 0 12 12'><path class=win d='M0 6h12'/></svg>over the hour before</li>"
            if long
            else ""
        )
        + (
            "<li><svg class=swatch viewBox='0 0 12 12'><path class=mark d='M6 0v12'/></svg>incident</li>"
            if marks
            else ""
        )
        + _kinds(spans)
        + "</ul>"
    )
    drawn = [_ettr_picture(spans, points, marks, wide, is_long=long) for wide in (WIDE, NARROW)]
    return f"<div class='chart wide'>{drawn[0]}</div><div class='chart narrow'>{drawn[1]}</div>{key}"


def marked_incidents(incidents: Sequence[Incident], begin_s: float, end_s: float) -> list[Incident]:
    """Return the incidents that are marked in a picture of this time: those that ended an attempt."""
    return [
        each for each in incidents[-MOST_MARKS:] if begin_s <= each.onset_s <= end_s and each.action.name != "report"
    ]


def _ettr_picture(
    spans: Sequence[LifeSpan], points: Sequence[EttrPoint], marked: Sequence[Incident], wide: int, *, is_long: bool
) -> str:
    begin_s, end_s = spans[0].begin_s, spans[-1].end_s

    def x(at_s: float) -> float:
        return LEFT + wide * (at_s - begin_s) / (end_s - begin_s)

    def line(values: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x(at_s):.1f} {_TOP + _HIGH * (1 - value):.1f}" for at_s, value in values)

    grid = join(
        f'<path class=grid d="M{LEFT} {_TOP + _HIGH * (1 - share):g}h{wide}"/><text class=dim text-anchor=end x={LEFT - 8} '
        f'y="{_TOP + _HIGH * (1 - share) + 4:g}">{share * 100:.0f}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    marks = join(
        f'<path class=mark d="M{x(each.onset_s):.1f} {_TOP}v{_HIGH}"><title>incident {each.id}</title></path>'
        for each in marked
    )
    sliding = f'<path class=win d="{line([(p.at_s, p.sliding) for p in points])}"/>' if is_long else ""
    bottom = _STRIP_Y + _STRIP_HIGH + 18
    whole = points[-1]
    said = f"ETTR {percent(whole.cumulative)}, over the last hour {percent(whole.sliding)}"
    return (
        f'<svg viewBox="0 0 {LEFT + wide + RIGHT} {bottom + 4}" '
        f'role=img aria-label="{said}">{grid}{marks}{sliding}<path class=cum d="{line([(p.at_s, p.cumulative) for p in points])}"/>'
        f'<text x={LEFT + wide + 8} y="{_TOP + _HIGH * (1 - whole.cumulative) + 4:.1f}">{percent(whole.cumulative)}</text>'
        f"{_strip(spans, x)}<text class=dim x={LEFT} y={bottom}>{clock_time(begin_s)}</text>"
        f"<text class=dim text-anchor=end x={LEFT + wide} y={bottom}>{clock_time(end_s)}</text></svg>"
    )


def _strip(spans: Sequence[LifeSpan], x: object) -> str:
    assert callable(x)
    drawn = []
    narrow = sorted((span.end_s - span.begin_s for span in spans), reverse=True)
    least_s = narrow[MOST_STRETCHES] if len(narrow) > MOST_STRETCHES else -1.0
    for span in spans:
        if span.end_s - span.begin_s > least_s:
            left, right = x(span.begin_s), x(span.end_s)
            drawn.append(
                f'<rect class=k-{span.kind} x="{left:.1f}" y={_STRIP_Y} width="{max(right - left, 0.6):.1f}" height={_STRIP_HIGH}>'
                f"<title>{SPAN_WORDS[span.kind][0]}: {lasted(span.end_s - span.begin_s)}</title></rect>"
            )
    return join(drawn)


def _kinds(spans: Sequence[LifeSpan]) -> str:
    return join(
        f"<li><svg class=swatch viewBox='0 0 8 8' aria-hidden=true><rect class=k-{kind} width=8 height=8 /></svg>{SPAN_WORDS[kind][0]}</li>"
        for kind, seconds in seconds_by_kind(spans).items()
        if seconds >= 0.005
    )


def split_bar(seconds: Mapping[SpanKind, float]) -> str:
    """Return a bar whose parts are as long as the kinds lasted."""
    whole_s = sum(seconds.values())
    at, parts = 0.0, []
    for kind in SPAN_WORDS:
        if seconds.get(kind, 0.0) > 0.0:
            wide = 1000 * seconds[kind] / whole_s
            parts.append(
                f'<rect class=k-{kind} x="{at:.1f}" width="{max(wide - 1.5, 0.8):.1f}" height=10>'
                f"<title>{SPAN_WORDS[kind][0]}: {lasted(seconds[kind])}</title></rect>"
            )
            at += wide
    return f'<svg class=split viewBox="0 0 1000 10" preserveAspectRatio=none role=img aria-label="time by kind">{join(parts)}</svg>'
