"""The page of several runs: a row for each, the newest first: how it is, its attempts, what went wrong last. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from robust_run.report.pages.frame import document
from robust_run.report.pages.markup import breakable, command, join, section, table, text
from robust_run.report.pages.words import count, date_time, lasted, number, percent
from robust_run.version import __version__

_WIDE, _HIGH = 150, 12
#: Characters of a verdict.
_LONGEST = 110
#: Gap between attempts in a strip.
_GAP = 1.5


class RunAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a run."""

    number: int
    began_unix_s: float
    ended_unix_s: float | None = None
    """None: it has no end on record."""
    why: str = ""
    """What ended it, where that was a failure."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list of runs."""

    run_id: str
    """The name of its run directory."""
    run_directory: str
    state: str = ""
    """A word or two: running, HUNG, done, failed; empty where nothing is known."""
    tone: str = "calm"
    """good, warn, calm, or bad."""
    headline: str = ""
    """The first line of its status."""
    note: str = ""
    """Why no controller answers, of a run that has no end on record."""
    problem: str = ""
    """Why it cannot be told how it is."""
    script: str = ""
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    ranks: int = 0
    nodes: int = 0
    attempts: tuple[RunAttempt, ...] = ()
    """The newest ones, oldest first."""
    attempts_count: int = 0
    ettr: float | None = None
    incidents: int = 0
    verdict: str = ""
    """The sentence of the newest incident."""
    verdict_unix_s: float | None = None
    page: str = ""
    """Its own page, below the folder of runs; empty: there is none."""


class RunsPage(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a folder, as `--json` prints them, too."""

    folder: str
    at_unix_s: float
    """When they were looked at."""
    runs: tuple[RunRow, ...] = ()
    """The newest first."""
    left_out: int = 0
    """Older ones that are not listed."""


def summary(runs: Sequence[RunRow]) -> str:
    """Return how many there are of each kind: `5 runs: 1 HUNG, 2 running, 2 done`; those that want somebody first."""
    states = Counter(row.state or "not readable" for row in runs)
    tones = {row.state or "not readable": _ORDER.index(row.tone) if row.tone in _ORDER else 0 for row in runs}
    parts = [f"{states[state]} {state}" for state in sorted(states, key=lambda state: (tones[state], state))]
    return f"{count(len(runs), 'run')}{': ' if parts else ''}{', '.join(parts)}"


_ORDER = ("bad", "warn", "good", "calm")


def runs_html(page: RunsPage) -> str:
    """Return the page as one HTML file."""
    heads = ("run", "state", "started", "#ranks", "#ETTR", "attempts", "incidents")
    rows = [_row(row, page.at_unix_s) for row in page.runs]
    more = f"<p class=dim>{count(page.left_out, 'older run')} not listed</p>" if page.left_out else ""
    again = command(f"robust report {shlex.quote(page.folder)}")
    body = (
        f"<div class=kicker><span>as of {date_time(page.at_unix_s)}</span></div><h1>{text(summary(page.runs))}</h1>"
        + section("runs", "Runs", table(heads, rows, "runs", "stack runs"), more, note="The newest first.")
        + f"<p class='dim small'>This page stays as it is. Drawn anew by {again}</p>"
    )
    top = f"<span class=grow>{breakable(page.folder, 200)}</span>"
    footer = f"robust-run {__version__} · drawn {date_time(page.at_unix_s)}"
    return document(f"{summary(page.runs)} · robust-run", top, body, footer)


def _row(row: RunRow, now_s: float) -> tuple[str, ...]:
    name = breakable(row.run_id, 120)
    link = f'<a href="{quote(row.page)}">{name}</a>' if row.page else name
    script = f"<br><span class='dim small'>{breakable(row.script, 120)}</span>" if row.script else ""
    state = f"<span class='kind nowrap {text(row.tone)}'>{text(row.state or 'not readable', 40)}</span>"
    if row.problem:
        return (
            link + script,
            state,
            _since(row, now_s),
            "",
            "",
            "",
            f"<span class=small>{text(row.problem, 400)}</span>",
        )
    ranks = (
        f"{number(row.ranks)}<br><span class='dim small nowrap'>{count(row.nodes, 'node')}</span>" if row.ranks else ""
    )
    ettr = percent(row.ettr) if row.ettr is not None else "–"
    return (link + script, state, _since(row, now_s), ranks, ettr, _strip(row, now_s), _incidents(row))


def _since(row: RunRow, now_s: float) -> str:
    if row.started_unix_s is None:
        return ""
    end_s = row.ended_unix_s if row.ended_unix_s is not None else now_s
    day, _, clock = date_time(row.started_unix_s).partition(" ")
    how = "for" if row.ended_unix_s is None else "lasted"
    return (
        f"<span class=nowrap>{day} {clock[:5]}</span><br><span class='dim small nowrap'>"
        f"{how} {lasted(max(0.0, end_s - row.started_unix_s))}</span>"
    )


def _incidents(row: RunRow) -> str:
    if row.note:
        return f"{number(row.incidents)}<br><span class=small>{breakable(row.note, 300)}</span>"
    if not row.incidents and not row.verdict:
        return "<span class=dim>none</span>"
    said = f"<br><span class=small>{breakable(_cut(row.verdict), 400)}</span>" if row.verdict else ""
    return f"{number(row.incidents)}{said}"


def _cut(said: str) -> str:
    """Return what fits two lines: the whole of it is on the run's own page."""
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1].rstrip()}…"


def _strip(row: RunRow, now_s: float) -> str:
    """Return the attempts as stretches of time: red where a failure ended one, green where it runs or ended well."""
    if not row.attempts:
        return ""
    begin_s = row.attempts[0].began_unix_s
    over_s = row.ended_unix_s if row.ended_unix_s is not None else now_s
    whole_s, went_well = max(over_s - begin_s, 1e-3), row.tone == "good" or row.state == "done"
    parts = []
    for index, each in enumerate(row.attempts):
        after_s = row.attempts[index + 1].began_unix_s if index + 1 < len(row.attempts) else over_s
        end_s = min(each.ended_unix_s if each.ended_unix_s is not None else after_s, over_s)
        left = _WIDE * min(max(each.began_unix_s - begin_s, 0.0) / whole_s, 1.0)
        wide = max(_WIDE * max(end_s - each.began_unix_s, 0.0) / whole_s - _GAP, 1.5)
        tone = "bad" if each.why else "good" if index + 1 == len(row.attempts) and went_well else "calm"
        said = (
            f"attempt {each.number}: {lasted(max(0.0, end_s - each.began_unix_s))}{': ' if each.why else ''}{each.why}"
        )
        parts.append(
            f'<rect class=a-{tone} x="{min(left, _WIDE - 1.5):.1f}" width="{wide:.1f}" height={_HIGH}><title>{text(said, 300)}</title></rect>'
        )
    older = row.attempts_count - len(row.attempts)
    said = count(row.attempts_count, "attempt")
    shown = f"<br>the newest {len(row.attempts)} drawn" if older > 0 else ""
    return (
        f'<svg class=strip viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio=none role=img aria-label="{said}">{join(parts)}</svg>'
        f"<span class='dim small'><span class=nowrap>{said}</span>{shown}</span>"
    )
