"""The start-up waterfall as a piece of a page: a bar per rank or node, a colour per phase, who was slow, what to switch on. Pure.

It needs no script and no network. Colours are the page's custom properties (--ink --muted --line --series-1 to --series-8 --bad),
with fallbacks for light and dark. Bars are SVG that stretches, text is HTML beside them: so it can be read on a phone, printed,
enlarged and read aloud. All that came from a job is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from robust_run.report.startup.advise import advise, chosen
from robust_run.report.startup.phases import seconds_of
from robust_run.report.startup.style import CLASSES, STYLE
from robust_run.report.startup.types import (
    MEANINGS,
    PHASES,
    Advice,
    AttemptStartup,
    FetchRow,
    Phase,
    PhaseSummary,
    RankRow,
    StartSpan,
    Startup,
)
from robust_run.report.startup.words import BEFORE, SHORT, fetch_words, plain, seconds, sentence, size, who

#: Jobs of several nodes with more ranks are drawn by node; the ranks can be unfolded.
RANKS_DRAWN = 16
#: Parts of a start that are drawn; a thousandth is too thin to be seen.
UNITS = 1000
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 36000, 86400)
MOST_TICKS = 6
ROWS_OF_FETCHES = 32


def waterfall(startup: Startup, attempt: int | None = None) -> str:
    """Return the HTML of one attempt's start; `attempt` None: the newest. Empty where nothing is known of it."""
    found = chosen(startup, attempt)
    if found is None or found.critical is None:
        return ""
    return "".join(_pieces(found, advise(startup, found.attempt)))


def _pieces(attempt: AttemptStartup, advice: Sequence[Advice]) -> Iterator[str]:
    said = sentence(attempt) or _so_far(attempt)
    yield f'<section class="rr-wf" aria-label="Start of attempt {attempt.attempt}"><style>{STYLE}</style>'
    yield f'<p class="rr-wf-say">{escape(said[0].upper() + said[1:])}.</p>'
    yield from _key(attempt)
    rows, heading = _drawn(attempt)
    ends = [*(row.spans[-1].ended_s for row in rows), *(row.fetch.ended_s for row in attempt.fetched)]
    length_s = max([attempt.total_s, *ends]) or 1.0
    yield f'<p class="rr-wf-note">{escape(heading)}</p>'
    yield from _chart(attempt, rows, length_s)
    if attempt.node_rows and rows == attempt.node_rows and attempt.rows:
        count = "all" if len(attempt.rows) == attempt.ranks else f"the last {len(attempt.rows)} of {attempt.ranks:,}"
        yield f"<details><summary>Ranks ({count})</summary>"
        yield from _chart(attempt, attempt.rows, length_s)
        yield "</details>"
    yield from _table(attempt)
    yield from _advice(advice)
    yield "</section>\n"


def _so_far(attempt: AttemptStartup) -> str:
    return f"no rank has made its first step after {seconds(attempt.total_s)} s"


def _drawn(attempt: AttemptStartup) -> tuple[tuple[RankRow, ...], str]:
    """Return the rows to draw, and what they are."""
    if attempt.node_rows and attempt.ranks > RANKS_DRAWN:
        shown = len(attempt.node_rows)
        which = f"the {shown} of {attempt.nodes:,} nodes with most to do" if shown < attempt.nodes else "each node"
        return attempt.node_rows, f"Of {which}, the rank that had most to do before its first step."
    rows = attempt.rows or ((attempt.critical,) if attempt.critical is not None else ())
    if len(rows) == attempt.ranks:
        return rows, "Every rank." if len(rows) > 1 else "The only rank."
    return rows, f"The {len(rows)} of {attempt.ranks:,} ranks that had most to do before their first step."


def _key(attempt: AttemptStartup) -> Iterator[str]:
    yield '<ul class="rr-wf-key"><li class="rr-wf-dim">median seconds:</li>'
    for each in attempt.phases:
        if each.phase not in BEFORE:
            yield (
                f'<li title="{escape(MEANINGS[each.phase])}">{_swatch(each.phase)}'
                f"{escape(SHORT[each.phase])} <b>{seconds(each.median_s)}</b></li>"
            )
    yield "</ul>"


def _swatch(phase: Phase) -> str:
    square = f'<rect class="{CLASSES[phase]}" width="10" height="10"/>'
    return f'<svg class="rr-wf-swatch" viewBox="0 0 10 10" aria-hidden="true">{square}</svg>'


def _chart(attempt: AttemptStartup, rows: Sequence[RankRow], length_s: float) -> Iterator[str]:
    slow = _slow(attempt)
    ticks = _ticks(length_s)
    yield '<ul class="rr-wf-rows">'
    for row in rows:
        label = f"{plain(row.node)} · rank {row.rank}" if attempt.nodes > 1 else f"rank {row.rank}"
        last = " rr-wf-last" if attempt.critical is not None and row.rank == attempt.critical.rank else ""
        end = f"{seconds(row.first_step_s)} s" if row.first_step_s is not None else "no step yet"
        notes = slow.get((row.node, row.rank), []) + slow.get((row.node, -1), [])
        yield f'<li class="rr-wf-row{last}"><span class="rr-wf-who">{escape(label)}</span>'
        yield from _bar(row, label, length_s, ticks)
        yield f'<span class="rr-wf-end">{end}</span>'
        if notes:
            yield f'<span class="rr-wf-slow">{escape("; ".join(notes))}</span>'
        yield "</li>"
    for fetched in attempt.fetched[:ROWS_OF_FETCHES]:
        yield from _fetch(attempt, fetched, length_s)
    marks = "".join(f'<span style="left:{100 * tick / length_s:.4g}%">{tick:g}</span>' for tick in ticks)
    yield '<li class="rr-wf-row rr-wf-axis" aria-hidden="true"><span class="rr-wf-who">seconds</span>'
    yield f"<div>{marks}</div></li></ul>"


def _bar(row: RankRow, label: str, length_s: float, ticks: Sequence[float]) -> Iterator[str]:
    spent = seconds_of(row)
    told = ", ".join(f"{SHORT[phase]} {seconds(spent[phase])} s" for phase in PHASES if phase in spent)
    spoken = escape(f"{label}: {told}")
    yield f'<svg viewBox="0 0 {UNITS} 20" preserveAspectRatio="none" role="img" aria-label="{spoken}">'
    for tick in ticks:
        at = UNITS * tick / length_s
        yield f'<path class="rr-wf-grid" d="M{at:.1f} 0V20"/>'
    for span in row.spans:
        yield _rect(span, length_s)
    yield "</svg>"


def _fetch(attempt: AttemptStartup, row: FetchRow, length_s: float) -> Iterator[str]:
    """Yield a row of what a node fetched beside its ranks."""
    label = f"{plain(row.node)} · {plain(row.fetch.what)}" if attempt.nodes > 1 else plain(row.fetch.what)
    words = fetch_words(row)
    begin = UNITS * row.fetch.began_s / length_s
    width = max(UNITS * row.fetch.ended_s / length_s - begin, 0.5)
    yield f'<li class="rr-wf-row"><span class="rr-wf-who">{escape(label)}</span>'
    yield (
        f'<svg viewBox="0 0 {UNITS} 20" preserveAspectRatio="none" role="img" aria-label="{escape(f"{label}: {words}")}">'
        f'<rect class="{CLASSES["load"]}" x="{begin:.1f}" y="7" width="{width:.1f}" height="6">'
        f"<title>fetched beside the start: {escape(words)}</title></rect></svg>"
    )
    yield f'<span class="rr-wf-end">{escape(size(row.fetch.size_bytes))}</span></li>'


def _rect(span: StartSpan, length_s: float) -> str:
    begin = UNITS * max(span.began_s, 0.0) / length_s
    width = UNITS * max(span.ended_s, 0.0) / length_s - begin
    if width <= 0.0:
        return ""
    title = f"{SHORT[span.phase]}: {span.ended_s - span.began_s:.2f} s, from {span.began_s:.2f} s on ({MEANINGS[span.phase]})"
    return (
        f'<rect class="{CLASSES[span.phase]}" x="{begin:.1f}" y="2" width="{max(width, 0.5):.1f}" height="16">'
        f"<title>{escape(title)}</title></rect>"
    )


def _slow(attempt: AttemptStartup) -> dict[tuple[str, int], list[str]]:
    """Return what is to be said beside a rank, or all ranks of a node (-1), that take longer than the others."""
    found: dict[tuple[str, int], list[str]] = {}
    for each in attempt.phases:
        for node, rank, taken_s in ((one.node, one.rank, one.seconds) for one in each.stragglers):
            note = f"▲ {SHORT[each.phase]} {seconds(taken_s)} s, median {seconds(each.median_s)} s"
            found.setdefault((node, rank), []).append(note)
    return found


def _ticks(length_s: float) -> list[float]:
    step = next((step for step in _TICKS if length_s / step <= MOST_TICKS), _TICKS[-1])
    return [round(index * step, 3) for index in range(int(min(length_s / step, 10 * MOST_TICKS)) + 1)]


def _table(attempt: AttemptStartup) -> Iterator[str]:
    yield (
        '<details open><summary>Phases</summary><div class="rr-wf-scroll"><table><caption>Seconds in each phase, over '
        f"{attempt.seen_ranks:,} ranks</caption><thead><tr><th scope=col>phase<th scope=col>median<th scope=col>90 %"
        "<th scope=col>longest<th scope=col>where</tr></thead><tbody>"
    )
    for each in attempt.phases:
        where = _where(attempt, each)
        slow = ' class="rr-wf-bad"' if each.stragglers else ""
        yield (
            f"<tr><th scope=row>{_swatch(each.phase)}{escape(SHORT[each.phase])}"
            f"<small>{escape(MEANINGS[each.phase])}</small></th>"
            f"<td>{seconds(each.median_s)}<td>{seconds(each.p90_s)}<td{slow}>{seconds(each.longest_s)}<td{slow}>{where}</tr>"
        )
    yield "</tbody></table></div></details>"


def _where(attempt: AttemptStartup, summary: PhaseSummary) -> str:
    """Return who took longest, where that is worth a look; and how many others did."""
    if attempt.seen_ranks < 2 or not summary.stragglers:
        return ""
    more = summary.straggler_count - 1
    return escape(f"▲ {who(attempt, summary)}{f' and {more:,} more' if more else ''}")


def _advice(advice: Sequence[Advice]) -> Iterator[str]:
    if not advice:
        return
    yield '<h3>To start faster</h3><ol class="rr-wf-advice">'
    for each in advice:
        yield f"<li><b>{escape(each.what)}</b> <span>about {seconds(each.saves_s)} s</span><br>{escape(each.why)}</li>"
    yield "</ol>"


def page(startup: Startup) -> str:
    """Return a page of its own with all starts that are known in detail, the newest first."""
    attempts = [each for each in reversed(startup.attempts) if each.critical is not None]
    title = escape(f"How {plain(startup.run_id)} started")
    bodies = "".join(
        f"<h2>{'First start' if not each.attempt else f'Restart: attempt {each.attempt}'}</h2>{waterfall(startup, each.attempt)}"
        for each in attempts[:32]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><title>{title}</title><style>:root{{color-scheme:light dark}}body{{margin:0 auto;max-width:72rem;'
        "padding:1rem;font:15px/1.45 system-ui,sans-serif;background:#fff;color:#16191d}"
        "@media(prefers-color-scheme:dark){body{background:#14171b;color:#e7eaee}}h1{font-size:1.4rem}h2{font-size:1.1rem}"
        f"</style></head><body><h1>{title}</h1>{bodies or '<p>Nothing is known yet.</p>'}</body></html>\n"
    )
