"""The start-up waterfall for a terminal, and plain where it is piped: a line per rank or node, a letter per phase. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from robust_run.report.startup.advise import advise, chosen
from robust_run.report.startup.types import AttemptStartup, FetchRow, Phase, RankRow, Startup
from robust_run.report.startup.words import BEFORE, SHORT, fetch_words, plain, seconds, sentence, who

LETTERS: dict[Phase, str] = {
    "queue": "q",
    "script": "b",
    "agent": "r",
    "image": "G",
    "snapshot": "E",
    "meet": "~",
    "spawn": "s",
    "imports": "I",
    "init": "N",
    "load": "L",
    "program": "p",
    "first_step": ".",
}
"""One for each phase; what the others do while they wait is faint."""
COLOURS: dict[Phase, str] = {
    "image": "blue",
    "snapshot": "green",
    "imports": "yellow",
    "init": "cyan",
    "load": "magenta",
    "program": "bright_cyan",
    "first_step": "bright_black",
    "meet": "bright_black",
}
FETCHED = "="
"""What is fetched beside a start."""
MOST_ROWS = 32
MOST_OTHERS = 12
LEAST_BAR, MOST_BAR, LONGEST_LABEL = 20, 100, 28

Paint = Callable[[str, str], str]
"""Colours a text; where nothing is coloured, returns it."""


def lines(
    startup: Startup, number: int | None, width: int, paint: Paint = lambda text, _: text, *, every: bool = False
) -> Iterator[str]:
    """Yield the lines of one attempt's start, `width` characters wide at most. `every`: all rows that are known."""
    attempt = chosen(startup, number)
    if attempt is None or attempt.critical is None:
        yield "nothing is known of that start"
        return
    yield sentence(attempt) or f"no rank has made its first step after {seconds(attempt.total_s)} s"
    yield ""
    yield from _bars(attempt, width, paint, every=every)
    yield ""
    yield from _phases(attempt, paint)
    advice = advise(startup, attempt.attempt)
    if advice:
        yield ""
        yield "to start faster:"
        for each in advice:
            yield f"  {each.what} (about {seconds(each.saves_s)} s): {each.why}"
    others = [each for each in startup.attempts if each.attempt != attempt.attempt][-MOST_OTHERS:]
    if others:
        yield ""
        told = ", ".join(f"{each.attempt} ({seconds(each.total_s)} s)" for each in others)
        yield f"other starts, for --attempt: {told}"


def _bars(attempt: AttemptStartup, width: int, paint: Paint, *, every: bool) -> Iterator[str]:
    rows = attempt.rows or ((attempt.critical,) if attempt.critical is not None else ())
    by_node = bool(attempt.node_rows) and attempt.ranks > MOST_ROWS and not every
    if by_node:
        rows = attempt.node_rows
    shown = rows if every else rows[:MOST_ROWS]
    labels = [_label(row, attempt) for row in shown]
    room = max(map(len, [*labels, *(_fetch_label(each, attempt) for each in attempt.fetched[:MOST_ROWS])]), default=0)
    ends = [*(row.spans[-1].ended_s for row in shown), *(row.fetch.ended_s for row in attempt.fetched)]
    length_s = max([attempt.total_s, *ends]) or 1.0
    columns = max(LEAST_BAR, min(MOST_BAR, width - room - 12))
    for label, row in zip(labels, shown, strict=True):
        end = f"{seconds(row.first_step_s)} s" if row.first_step_s is not None else "no step"
        yield f"{label:>{room}} {''.join(_bar(row, length_s, columns, paint))} {end}"
    for fetched in attempt.fetched[:MOST_ROWS]:
        bar = "".join(_fetch_bar(fetched, length_s, columns, paint))
        yield f"{_fetch_label(fetched, attempt):>{room}} {bar} {fetch_words(fetched)}"
    count, whole = len(shown), attempt.nodes if by_node else attempt.ranks
    if count < whole:
        yield f"{'':>{room}} ({count} of {whole} {'nodes' if by_node else 'ranks'})"


def _label(row: RankRow, attempt: AttemptStartup) -> str:
    name = f"{plain(row.node)} " if attempt.nodes > 1 else ""
    return f"{name[-LONGEST_LABEL:]}rank {row.rank}"


def _fetch_label(row: FetchRow, attempt: AttemptStartup) -> str:
    name = f"{plain(row.node)} " if attempt.nodes > 1 else ""
    return f"{name[-LONGEST_LABEL:]}{plain(row.fetch.what)}"


def _fetch_bar(row: FetchRow, length_s: float, columns: int, paint: Paint) -> Iterator[str]:
    column_s = length_s / columns
    begin = min(int(row.fetch.began_s / column_s), columns - 1)
    end = max(begin + 1, min(columns, round(row.fetch.ended_s / column_s)))
    yield " " * begin
    yield paint(FETCHED * (end - begin), COLOURS["load"])
    yield " " * (columns - end)


def _bar(row: RankRow, length_s: float, columns: int, paint: Paint) -> Iterator[str]:
    """Yield pieces of a bar: in each column the phase that has most of it."""
    column_s = length_s / columns
    letters: list[Phase | None] = []
    for column in range(columns):
        begin, end = column * column_s, (column + 1) * column_s
        shares = [(min(span.ended_s, end) - max(span.began_s, begin), span.phase) for span in row.spans]
        share, phase = max(shares, key=lambda each: each[0])
        letters.append(phase if share > 0.25 * column_s else None)
    start = 0
    while start < columns:
        until = start
        while until < columns and letters[until] == letters[start]:
            until += 1
        here = letters[start]
        text = (LETTERS[here] if here is not None else " ") * (until - start)
        yield paint(text, COLOURS.get(here, "")) if here is not None else text
        start = until


def _phases(attempt: AttemptStartup, paint: Paint) -> Iterator[str]:
    yield f"{'phase':<16}{'median':>8}{'90 %':>8}{'longest':>9}  where"
    for each in attempt.phases:
        letter = " " if each.phase in BEFORE else LETTERS[each.phase]
        where = ""
        if each.stragglers:
            more = f" and {each.straggler_count - 1} more" if each.straggler_count > 1 else ""
            where = f"slow: {who(attempt, each)}{more}"
        name = f"{paint(letter, COLOURS.get(each.phase, ''))} {SHORT[each.phase]:<14}"
        yield f"{name}{seconds(each.median_s):>8}{seconds(each.p90_s):>8}{seconds(each.longest_s):>9}  {where}".rstrip()
