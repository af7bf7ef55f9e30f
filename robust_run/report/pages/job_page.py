"""The page of a job: how it is, how much of its time was training, what went wrong, where the rest of the time went. Pure.

Each part is a `<section data-part=...>`: a live page fetches itself and puts in place what has changed.
"""

from __future__ import annotations

import re

from robust_run.report.effective import Standstill
from robust_run.report.heat import headline
from robust_run.report.heatmap import fragment_style, heatmap_fragment
from robust_run.report.pages import job_parts as parts
from robust_run.report.pages.charts import ettr_chart
from robust_run.report.pages.ettr import longest_unproductive_s, ratio, seconds_by_kind
from robust_run.report.pages.fleet_charts import fleet
from robust_run.report.pages.frame import document
from robust_run.report.pages.markup import breakable, command, join, section, text, visible
from robust_run.report.pages.reported import reported
from robust_run.report.pages.types import JobPage
from robust_run.report.pages.usage_charts import usage
from robust_run.report.pages.words import as_of, clock_time, count, date_time, incident_name, lasted, number, percent
from robust_run.version import __version__

PHASE_WORDS = {
    "running": ("running", "good"),
    "gathering": ("waiting for nodes", "warn"),
    "opening": ("starting", "warn"),
    "suspecting": ("something failed", ""),
    "ending": ("restarting", "warn"),
    "stopping": ("stopping", "warn"),
}
"""What is said of a job that runs, by its phase, and the tone of it."""


def job_html(page: JobPage) -> str:
    """Return the page as one HTML file; where the job runs, one that renews itself from the server it came from."""
    body = join(
        (
            _part("head", _head(page)),
            _wrapped("ettr", _ettr(page)),
            _wrapped("incidents", parts.incidents(page)),
            _wrapped("time", parts.where_time_went(page)),
            _wrapped("attempts", parts.attempts(page)),
            _wrapped("reported", reported(page.series, page.series_rank)),
            _wrapped("fleet", _fleet(page)),
            _wrapped("usage", _usage(page)),
            _wrapped("startup", _startup(page)),
            _wrapped("steps", _steps(page)),
            _wrapped("evictions", parts.evictions(page)),
            _wrapped("code", parts.code(page)),
            _wrapped("definitions", parts.definitions(page)),
        )
    )
    title = f"{_state(page)[0]} · {page.run_id} · robust-run"
    return document(title, _top(page), body, _footer(page), live=page.drawn.served)


def _part(name: str, content: str) -> str:
    return f"<div data-part={name}>{content}</div>"


def _wrapped(name: str, content: str) -> str:
    return _part(name, content) if content else ""


def _top(page: JobPage) -> str:
    live = "<span id=live role=status><i class=live-dot></i><span>live</span></span>" if page.drawn.served else ""
    return f"<span class=grow>{text(page.run_id, 120)} › {text(page.script, 120)}</span>{live}"


def _state(page: JobPage) -> tuple[str, str]:
    """Return how the job is in a word, and the tone of it."""
    if page.outcome:
        return {"done": ("done", "good"), "failed": ("failed", ""), "stopped": ("stopped", "warn")}.get(
            page.outcome, (page.outcome, "calm")
        )
    if not page.drawn.is_live:
        return {"gone": "no controller", "unknown": "not known"}.get(page.drawn.life, "over"), "warn"
    if _standing(page) is not None:
        return "HUNG", ""
    return PHASE_WORDS.get(page.phase, (page.phase or "new", "calm"))


def _standing(page: JobPage) -> Standstill | None:
    """Return the standstill that goes on, of a job that runs."""
    is_one = page.drawn.is_live and not page.outcome and page.phase == "running" and page.attempts
    return page.attempts[-1].standing if is_one else None


def _head(page: JobPage) -> str:
    word, tone = _state(page)
    lived_s = max(0.0, page.known_s - page.started_s)
    facts = [
        f"<span>since {date_time(page.started_s)}</span>",
        f"<span>controller on {text(page.host, 80)}</span>" if page.host else "",
    ]
    if page.ended_s is not None:
        facts.insert(1, f"<span>ended {date_time(page.ended_s)}</span>")
    elif page.drawn.is_live:
        word = word if page.drawn.served else f"as of {clock_time(page.drawn.at_s)}, {word}"
    else:
        facts.insert(0, as_of(page.drawn))
    return (
        f"<div class=kicker><span class='kind {tone}'>{word}</span>{join(facts)}</div><h1>{_sentence(page, lived_s)}</h1>"
        + _todo(page)
        + _figures(page, lived_s)
    )


def _sentence(page: JobPage, lived_s: float) -> str:
    size = f"{count(page.world_size, 'rank')}"
    if page.nodes_active:
        size += f" on {count(page.nodes_active, 'node')}"
    if page.outcome == "done":
        said, rest = f"Finished after {lasted(lived_s)}", f"{size}, {count(len(page.attempts), 'attempt')}"
    elif page.outcome == "failed":
        said, rest = (
            f"Failed after {lasted(lived_s)}: {page.reason or 'no reason is on record'}",
            f"exit code {page.exit_code}",
        )
    elif page.outcome:
        said, rest = f"Stopped after {lasted(lived_s)}", page.reason
    elif not page.drawn.is_live:
        said, rest = _of_one_that_is_silent(page)
    elif (standing := _standing(page)) is not None:
        said, rest = _of_one_that_stands_still(page, standing)
        rest += f"{size}, attempt {page.attempts[-1].number}; it was reported, and nothing was done about it so far"
    elif page.attempts:
        said, rest = f"{size}, attempt {page.attempts[-1].number}", ""
        if page.nodes_standby:
            rest = f"{count(page.nodes_standby, 'standby')}".replace("standbys", "standbys")
    else:
        said, rest = "No attempt has begun yet", ""
    more = f"<span class=rest>{breakable(rest, 600)}</span>" if rest else ""
    return f"{breakable(said, 600)}{more}"


def _of_one_that_stands_still(page: JobPage, standing: Standstill) -> tuple[str, str]:
    """Return what is said of a job that hangs, and smaller what was seen beside that. How long ranks had waited then is old."""
    told = next((each.incident for each in page.incidents if each.incident.id == standing.incident), None)
    sentence = told.verdict.sentence if told is not None else "ranks wait"
    head, _, rest = re.sub(r" \(\d+ ranks? ha(s|ve) been waiting for [^)]*\)", "", sentence).partition("; ")
    said = f"Hung for {lasted(max(0.0, page.known_s - standing.begin_s))}: {head}"
    return said, f"{rest[:1].upper()}{rest[1:]}. " if rest else ""


def _of_one_that_is_silent(page: JobPage) -> tuple[str, str]:
    """Return what is known of a job that has no end on record, and does not answer."""
    drawn = page.drawn
    said = "No end was recorded" if drawn.life == "gone" else "It is not known here whether it runs"
    last = f"its journal ends at {date_time(page.known_s)}"
    return said, "; ".join(filter(None, (drawn.note, last)))


def _todo(page: JobPage) -> str:
    """Return what to type about a job that has no end on record, and does not answer; where to read on about one that hangs."""
    drawn, standing = page.drawn, _standing(page)
    if standing is not None and standing.incident:
        name = incident_name(standing.incident)
        return f"<p><a href=incidents/{name}>What to do about it: incident {standing.incident}</a></p>"
    if page.outcome or drawn.is_live or not drawn.command:
        return ""
    what = "Continue it" if drawn.life == "gone" else "Ask" if drawn.where else "Ask again in a moment"
    where = f", on {text(drawn.where, 80)}" if drawn.where else ""
    return f"<p>{what}{where}:<br>{command(drawn.command)}</p>"


def _figures(page: JobPage, lived_s: float) -> str:
    whole, hour = ratio(page.spans), ratio(page.spans, since_s=page.spans[-1].end_s - 3600.0) if page.spans else None
    idle_s = sum(seconds for kind, seconds in seconds_by_kind(page.spans).items() if kind != "productive")
    shown = [
        ("ETTR", percent(whole) if whole is not None else "–", "of all time so far was training that lasted"),
        ("ETTR, last hour", percent(hour) if hour is not None else "–", "the same over the last 60 minutes"),
        (
            "Not training",
            lasted(idle_s),
            f"of {lasted(lived_s)}; longest stretch {lasted(longest_unproductive_s(page.spans))}",
        ),
        ("Incidents", number(len(page.incidents)), _last(page)),
        ("Attempts", number(len(page.attempts)), _newest_steps(page)),
    ]
    return (
        "<div class=figures>"
        + join(
            f"<div><div class=label>{name}</div><strong>{value}</strong><small>{said}</small></div>"
            for name, value, said in shown
        )
        + "</div>"
    )


def _last(page: JobPage) -> str:
    if not page.incidents:
        return "none so far" if page.drawn.is_live else "none"
    return f"the last at {date_time(page.incidents[-1].incident.detected_s)[11:]}"


def _newest_steps(page: JobPage) -> str:
    steps = page.attempts[-1].steps if page.attempts else None
    return f"{number(steps)} steps in the newest" if steps is not None else ""


def _ettr(page: JobPage) -> str:
    chart = ettr_chart(page.spans, [each.incident for each in page.incidents])
    note = "The share of wall-clock time that was training, since the beginning and over the hour before each moment."
    return section("ettr", "Effective training time", chart, note=note) if chart else ""


def _usage(page: JobPage) -> str:
    """Return the pictures of memory and GPUs, over the same time as the course of ETTR."""
    begin_s, end_s = (page.spans[0].begin_s, page.spans[-1].end_s) if page.spans else (page.started_s, page.known_s)
    return usage(page.usage, begin_s, end_s, page.attempts, [each.incident for each in page.incidents])


def _fleet(page: JobPage) -> str:
    """Return nodes against their peers, over the same time."""
    begin_s, end_s = (page.spans[0].begin_s, page.spans[-1].end_s) if page.spans else (page.started_s, page.known_s)
    return fleet(page.usage, begin_s, end_s)


def _startup(page: JobPage) -> str:
    return section("startup", "Start-up", page.startup) if page.startup else ""


def _steps(page: JobPage) -> str:
    if page.heat is None:
        return ""
    nodes = {rank: visible(node) for rank, node in page.heat_nodes.items()}
    picture = heatmap_fragment(page.heat, nodes)
    shared = len(page.heat.ranks[0]) if page.heat.ranks else 1
    note = (
        f"{text(headline(page.heat, nodes), 300)}. Own time of each step{' on the GPU' if page.heat.on_gpus else ''}, without "
        f"waiting for peers, relative to the median of all ranks.{f' Each row is the slowest of {shared} ranks.' if shared > 1 else ''} {text(page.heat_note, 200)}"
    )
    scroll = f"<div class=heat tabindex=0 role=region aria-label='step times by rank'>{picture}</div>"
    return f"<style>{fragment_style('.heat')}</style>" + section("steps", "Step time of each rank", scroll, note=note)


def _footer(page: JobPage) -> str:
    return f"robust-run {__version__} · <code>{breakable(page.command, 400)}</code> · {breakable(page.run, 300)} · drawn {date_time(page.drawn.at_s)}"
