"""A plan as one HTML file with pictures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from robust_run.planning.advice import Advice, IntervalChoice
from robust_run.planning.advising import Planned
from robust_run.planning.results import Part, Range, Summary
from robust_run.planning.show import LEAST_SHARE, MECHANISM_WORDS, PHASE_WORDS, between, how_often
from robust_run.report.pages.frame import document
from robust_run.report.pages.markup import command, join, section, table, text
from robust_run.report.pages.words import lasted
from robust_run.version import __version__

_KEY = (
    "<ul class='legend small'><li><svg class=swatch viewBox='0 0 12 12'><path class=cum d='M0 6h12'/></svg>as it is</li>"
    "<li><svg class=swatch viewBox='0 0 12 12'><path class=win d='M0 6h12'/></svg>without copies in memory</li>"
    "<li><svg class=swatch viewBox='0 0 12 12'><path class=mark d='M6 0v12'/></svg>by Young</li></ul>"
)
_WIDE, _HIGH, _LEFT, _TOP, _BOTTOM = 560, 190, 62, 12, 40


def plan_html(found: Planned, line: str) -> str:
    """Return the page. `line`: the command that draws it anew."""
    summary, advice = found.summary, found.advice
    title = f"{summary.nodes:,} nodes, {summary.gpus:,} GPUs, {summary.days:g} days"
    parts = [
        section(
            "phases", "Lost by phase", _bars({PHASE_WORDS[k]: each for k, each in summary.by_phase.items()}, "phase")
        ),
        section(
            "causes",
            "Lost by cause",
            _bars(summary.by_cause, "cause"),
            note="A cause is the fault that time was lost to.",
        ),
        section(
            "improve",
            "What to improve",
            _improvements(summary),
            note="What each would bring if halved, by itself; reckoned from what was lost.",
        ),
        section("done", "What was done", _counts(summary), note="Incidents of one seed, on average."),
        *([_standbys(advice), _intervals(advice), _mechanisms(advice)] if advice is not None else []),
    ]
    kicker = f"a plan: {summary.seeds} seeds, {summary.standby} standbys; the launcher's own decisions, in virtual time"
    body = (
        f"<div class=kicker><span>{text(kicker)}</span></div><h1>{text(title)}</h1>{_answers(summary)}{join(parts)}"
        f"<p class='dim small'>Drawn anew by {command(line)}</p>"
    )
    return document(f"{title} · robust plan", "<span class=grow>robust plan</span>", body, f"robust-run {__version__}")


def _improvements(summary: Summary) -> str:
    rows = [
        (text(each.what), f"+{100 * each.share:.2f} %", f"{each.gpu_hours:,.0f}", text(each.how), text(each.rests_on))
        for each in summary.improvements
    ]
    return table(("halve", "#of the time", "#GPU-hours", "how", "rests on"), rows, "improvements")


def _answers(summary: Summary) -> str:
    lost = summary.lost
    money = f"; {lost.money:,.0f} in money" if lost.money is not None else ""
    cells = (
        (
            "ETTR",
            _percent(summary.ettr.mean),
            f"{_range(summary.ettr, summary.seeds)}; worst hour {_percent(summary.worst_hour)}",
        ),
        (
            "goodput",
            _percent(summary.goodput.mean),
            f"{_range(summary.goodput, summary.seeds)}; without what saving and slow nodes take",
        ),
        (
            "lost",
            f"{lost.gpu_hours:,.0f} GPU-hours",
            f"{how_often(summary, lasted)}, longest stop {lasted(summary.longest_stop_s)}{money}",
        ),
    )
    return (
        "<div class='answers plain'>"
        + join(
            f"<div><div class=label>{text(name)}</div><strong>{text(value)}</strong><small>{text(more)}</small></div>"
            for name, value, more in cells
        )
        + "</div>"
    )


def _bars(parts: Mapping[str, Part], head: str) -> str:
    shown = {name: each for name, each in parts.items() if each.share >= LEAST_SHARE}
    most = max((each.share for each in shown.values()), default=1.0)
    rows = (
        (text(name), _bar(each.share / most), f"{100 * each.share:.2f} %", f"{each.gpu_hours:,.0f}")
        for name, each in sorted(shown.items(), key=lambda item: -item[1].share)
    )
    return table((head, "", "#of the time", "#GPU-hours"), rows, f"lost by {head}")


def _bar(share: float, css: str = "bar lead") -> str:
    wide = max(200 * min(share, 1.0), 1.0)
    drawn = f'<rect class="{css}" width="{wide:.1f}" height=12 />'
    return f'<svg width=200 height=12 viewBox="0 0 200 12" aria-hidden=true>{drawn}</svg>'


def _counts(summary: Summary) -> str:
    ladder = {f"{name}, by the ladder": count for name, count in summary.ladder.items()}
    rows = ((text(name), f"{count:.1f}") for name, count in {**summary.rungs, **ladder}.items())
    return table(("what", "#incidents"), rows, "incidents by what was done")


def _standbys(advice: Advice) -> str:
    most = max(each.lost_gpu_hours for each in advice.standbys) or 1.0
    rows = (
        (
            f"<b>{each.standby}</b> costs least" if each.standby == advice.standby_cheapest else str(each.standby),
            _bar(each.lost_gpu_hours / most),
            f"{each.lost_gpu_hours:,.0f}",
            _percent(each.ettr),
        )
        for each in advice.standbys
    )
    p99, daily = advice.standby_p99, advice.standby_binomial
    note = f"{p99} cover the nodes that are out in 99 % of the time, {daily} those that fail on 99 % of the days."
    heads = ("standbys", "", "#GPU-hours lost or waiting", "#ETTR")
    return section("standbys", "Standbys", table(heads, rows, "standbys"), note=note)


def _intervals(advice: Advice) -> str:
    note = f"By theory, without copies in memory: Young {lasted(advice.young_s)}, Daly {lasted(advice.daly_s)}."
    heads = ("every", "#goodput", "#without copies in memory")
    rows = ((lasted(each.every_s), _percent(each.goodput), _percent(each.without_memory)) for each in advice.intervals)
    drawn = f"<div class=chart>{_curves(advice.intervals, advice.young_s)}</div>{_KEY}"
    return section("intervals", "Checkpoints to storage", drawn, table(heads, rows, "checkpoint intervals"), note=note)


def _curves(intervals: Sequence[IntervalChoice], young_s: float) -> str:
    """Return goodput by interval, with and without copies in memory, and where theory has the best."""
    values = [value for each in intervals for value in (each.goodput, each.without_memory)]
    low = min(values)
    high = max(*values, low + 1e-6)
    first, last = math.log(intervals[0].every_s), math.log(max(intervals[-1].every_s, intervals[0].every_s * 1.001))

    def x(every_s: float) -> float:
        return _LEFT + _WIDE * (math.log(every_s) - first) / (last - first)

    def y(value: float) -> float:
        return _TOP + _HIGH * (1 - (value - low) / (high - low))

    def line(of: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x(every_s):.1f} {y(value):.1f}" for every_s, value in of)

    with_ = line((each.every_s, each.goodput) for each in intervals)
    without = line((each.every_s, each.without_memory) for each in intervals)
    ticks = join(
        f"<text class=dim text-anchor=middle x={x(each.every_s):.1f} y={_TOP + _HIGH + 20}>{lasted(each.every_s)}</text>"
        for each in intervals
    )
    marks = join(f"<text class=dim x=0 y={y(value) + 4:.1f}>{_percent(value)}</text>" for value in (low, high))
    theory = x(min(max(young_s, intervals[0].every_s), intervals[-1].every_s))
    wide, high_px = _LEFT + _WIDE + 40, _TOP + _HIGH + _BOTTOM
    return (
        f'<svg viewBox="0 0 {wide} {high_px}" width={wide} role=img aria-label="goodput by checkpoint interval">'
        f'<path class=mark d="M{theory:.1f} {_TOP}v{_HIGH}"><title>by Young</title></path>'
        f'<path class=cum d="{with_}"/><path class=win d="{without}"/>{ticks}{marks}</svg>'
    )


def _mechanisms(advice: Advice) -> str:
    most = max((each.gpu_hours for each in advice.mechanisms), default=0.0) or 1.0
    rows = (
        (
            text(MECHANISM_WORDS[each.mechanism]),
            _bar(max(each.gpu_hours, 0.0) / most),
            f"{each.gpu_hours:+,.0f} ± {each.chance:,.0f}",
            _percent(each.ettr),
        )
        for each in advice.mechanisms
    )
    heads = ("without", "", "#GPU-hours more lost", "#ETTR")
    note = f"The same faults, {advice.seeds} seeds; ± is the standard error."
    return section("mechanisms", "What each mechanism is worth", table(heads, rows, "mechanisms"), note=note)


def _range(of: Range, seeds: int) -> str:
    return between(of, seeds) if seeds > 1 else "one seed"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
