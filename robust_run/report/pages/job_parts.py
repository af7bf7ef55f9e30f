"""Parts of a job's page: incidents, where time went, attempts, evictions, code versions, definitions. Pure."""

from __future__ import annotations

from robust_run.report.pages.charts import split_bar
from robust_run.report.pages.ettr import SPAN_WORDS, seconds_by_kind
from robust_run.report.pages.markup import breakable, join, section, table, text
from robust_run.report.pages.rules import KIND_WORDS
from robust_run.report.pages.types import AttemptTimes, Happened, IncidentCost, JobPage, SpanKind
from robust_run.report.pages.words import clock_time, count, date_time, incident_name, lasted, number, percent

#: Rows of the tables; older ones are counted.
MOST_INCIDENTS = 300
MOST_ATTEMPTS = 200
MOST_EVICTIONS = 500

_ACTIONS = {
    "relaunch": "relaunched",
    "evict": "evicted, relaunched",
    "rollback": "rolled back",
    "stop": "stopped",
    "report": "reported",
    "diagnose": "diagnosed",
    "replay": "replayed",
}


def incidents(page: JobPage) -> str:
    """Return the incidents, the newest first."""
    unread = f"<p class=dim>{text(page.unread[:1].upper() + page.unread[1:], 300)}.</p>" if page.unread else ""
    if not page.incidents:
        none = unread or f"<p class=dim>None{' so far' if page.drawn.is_live else ''}.</p>"
        return section("incidents", "Incidents", none)
    shown = page.incidents[::-1][:MOST_INCIDENTS]
    rows = [_incident(each) for each in shown]
    left = len(page.incidents) - len(shown)
    more = f"<p class=dim>{count(left, 'older incident')} not listed; their pages are in incidents/</p>" if left else ""
    heads = ("", "when", "what happened", "done", "#standstill", "#steps lost")
    return section("incidents", "Incidents", table(heads, rows, "incidents", "stack"), more, unread)


def _incident(each: Happened) -> tuple[str, ...]:
    incident = each.incident
    kind = KIND_WORDS.get(incident.verdict.kind, "failure")
    who = f" · {text(', '.join(incident.verdict.nodes[:2]), 80)}" if incident.verdict.nodes else ""
    tone = "warn" if incident.action.name == "report" else ""
    return (
        str(incident.id),
        f"<span class=nowrap>{clock_time(incident.onset_s)}</span>",
        f"<a href=incidents/{incident_name(incident.id)}>{breakable(incident.verdict.sentence, 300)}</a>"
        f"<br><span class='kind small {tone}'>{kind}</span><span class='dim small'>{who}</span>",
        f"<span class=nowrap>{_ACTIONS.get(incident.action.name, incident.action.name)}</span>",
        _standstill(each),
        _steps(each.lost) if incident.action.name != "report" else "",
    )


def _standstill(each: Happened) -> str:
    if each.incident.action.name == "report" and not each.lost.seconds:
        return ""
    return lasted(each.lost.seconds) + ("" if each.lost.is_over else " …")


def _steps(lost: IncidentCost) -> str:
    if lost.steps is None:
        return "?"
    return f"{'≤ ' if lost.is_most else ''}{number(lost.steps)}"


def where_time_went(page: JobPage) -> str:
    """Return where the unproductive time went: a bar, and the same as a table."""
    seconds = seconds_by_kind(page.spans)
    whole_s = sum(seconds.values())
    idle: dict[SpanKind, float] = {kind: value for kind, value in seconds.items() if kind != "productive"}
    if not idle or whole_s <= 0:
        return ""
    idle_s = sum(idle.values())
    rows = [
        (
            f"<span class=nowrap><svg class=swatch viewBox='0 0 8 8' aria-hidden=true><rect class=k-{kind} width=8 height=8 /></svg>"
            f"{SPAN_WORDS[kind][0]}</span>",
            f"<span class='dim small'>{SPAN_WORDS[kind][1]}</span>",
            lasted(value),
            percent(value / idle_s),
            percent(value / whole_s),
        )
        for kind, value in sorted(idle.items(), key=lambda item: -item[1])
        if value >= 0.005
    ]
    heads = ("", "", "#time", "#of it", "#of all time")
    note = f"{lasted(idle_s)} of {lasted(whole_s)} were not spent on training that lasted."
    return section(
        "time", "Where the other time went", split_bar(idle), table(heads, rows, "time by kind", "stack"), note=note
    )


def attempts(page: JobPage) -> str:
    """Return the attempts, the newest first."""
    if not page.attempts:
        return ""
    ended_by = {
        each.incident.attempt: each.incident.id for each in page.incidents if each.incident.action.name != "report"
    }
    shown = page.attempts[::-1][:MOST_ATTEMPTS]
    rows = [_attempt(page, each, ended_by.get(each.number)) for each in shown]
    left = len(page.attempts) - len(shown)
    more = f"<p class=dim>{count(left, 'older attempt')} not listed</p>" if left else ""
    heads = ("", "ordered", "size", "workers", "#first step after", "#ran for", "#steps", "ended by")
    return section("attempts", "Attempts", table(heads, rows, "attempts", "stack"), more)


def _startup_s(page: JobPage, each: AttemptTimes, first_s: float) -> float:
    """Return after how long an attempt made its first step: as measured on its nodes, else as the journal tells."""
    began_s = page.started_s if each.number == 0 else each.ordered_s
    return page.starts.get(each.number, max(first_s - began_s, 0.0))


def _attempt(page: JobPage, each: AttemptTimes, incident: int | None) -> tuple[str, ...]:
    first = each.first_step_s if page.counts_steps else each.started_s
    end_s = each.ended_s if each.ended_s is not None else page.ended_s if page.ended_s is not None else page.known_s
    is_last = each is page.attempts[-1]
    if incident is not None:
        ended = f"<a href=incidents/{incident_name(incident)}>incident {incident}</a>"
    elif each.ended_s is None and page.drawn.is_live:
        ended = "<span class=good>runs</span>"
    else:
        ended = page.outcome or "not known" if is_last else "a new attempt"
    code = f"<br><span class='dim small'>code version {each.code}</span>" if each.code and len(page.code) > 1 else ""
    return (
        str(each.number),
        f"<span class=nowrap>{clock_time(each.ordered_s)}</span>",
        f"{count(each.world_size, 'rank')}, {count(len(each.places), 'node')}{code}",
        text(each.how, 80),
        lasted(_startup_s(page, each, first)) if first is not None else "none",
        lasted(end_s - each.ordered_s),
        number(each.steps) if each.steps is not None else "so far not counted" if each.ended_s is None else "",
        ended,
    )


def evictions(page: JobPage) -> str:
    """Return the hosts that are not used."""
    if not page.evictions:
        return ""
    rows = [
        (
            text(each.node, 80),
            breakable(each.reason or "no reason given", 300),
            text(each.by, 80),
            date_time(each.at_s) if each.at_s else "",
        )
        for each in page.evictions[::-1][:MOST_EVICTIONS]
    ]
    left = len(page.evictions) - len(rows)
    more = f"<p class=dim>and {number(left)} more</p>" if left else ""
    return section(
        "evictions", "Evicted nodes", table(("node", "why", "by", "when"), rows, "evicted nodes", "stack"), more
    )


_FATES = {
    "trusted": "<span class=good>trusted</span>",
    "pending": "pending",
    "probation": "<span class=warn>on probation</span>",
    "merged": "merged",
    "rolled_back": "<span class=bad>rolled back</span>",
}


def code(page: JobPage) -> str:
    """Return the versions of the code, where there was more than one."""
    if len(page.code) < 2:
        return ""
    rows = [
        (
            str(each.number),
            _FATES.get(each.fate, text(each.fate)),
            breakable(each.summary or "as the job was started", 300)
            + (f"<br><span class='dim small'>{breakable(each.note, 300)}</span>" if each.note else ""),
            breakable(each.why, 300),
            text(each.by, 80),
            date_time(each.at_s) if each.at_s else "",
        )
        for each in page.code[::-1][:MOST_ATTEMPTS]
    ]
    return section(
        "code", "Code versions", table(("", "", "change", "why", "by", "when"), rows, "code versions", "stack")
    )


def definitions(page: JobPage) -> str:
    """Return what the figures mean."""
    productive = (
        "from the first optimizer step of an attempt"
        if page.counts_steps
        else "from the moment all workers of an attempt run (its steps are not counted)"
    )
    listed = join(
        f"<dt>{name}</dt><dd>{said}</dd>" for kind, (name, said) in SPAN_WORDS.items() if kind != "productive"
    )
    return section(
        "definitions",
        "What the figures mean",
        f"<p><b>ETTR</b>, the effective training time ratio, is productive time divided by wall-clock time. Productive is the time "
        f"{productive} to the onset of what ended it (or the order to end), but for standstills, in which ranks waited and that was only reported, and for what was made again: what was trained after the checkpoint was made that a later attempt "
        "began from (known only with <code class=nowrap>--ckpt-dir</code>). The cumulative one counts from the start of the job; the sliding one counts the 60 minutes before a moment, or "
        "the whole life of a job that is younger.</p>"
        "<p><b>Standstill</b> is the time from an incident’s onset to the first step of the next attempt. Its <b>GPU-seconds</b> are "
        "that, and the time of steps made again, for each rank.</p>"
        f"<details id=kinds><summary>Each kind of unproductive time</summary><dl class=facts>{listed}</dl></details>",
    )
