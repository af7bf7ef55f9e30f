"""A fleet as one HTML page: how it did, what fails how often, which nodes, what starting costs, all runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from robust_run.fleet.page_charts import STYLE, bar, course_chart
from robust_run.fleet.page_nodes import kinds_text, lemons_section, nodes_section, rates_section
from robust_run.fleet.results import Fleet, Part, RunLine, StartGroup
from robust_run.fleet.show import (
    counted,
    figure,
    hours,
    lemon_lines,
    notes_of,
    percent,
    phases_of,
    skipped_line,
    time_line,
)
from robust_run.report.pages.frame import document
from robust_run.report.pages.markup import breakable, command, join, section, table, text
from robust_run.report.pages.words import date_time, lasted, number
from robust_run.version import __version__

MOST_RUNS, MOST_CODE = 200, 30
_TONES = {"live": "good", "done": "calm", "stopped": "calm", "failed": "bad", "lost": "warn"}


def fleet_html(fleet: Fleet, line: str, links: Mapping[str, str] | None = None, every_s: float = 0.0) -> str:
    """Return the page. `line`: the command that draws it anew. `links`: where pages of runs are, relative to this one, by run
    directory. `every_s`: a browser loads it again after so long, as the command writes it anew; 0: it stays as it is.
    """
    title = _title(fleet)
    stays = f"It is written anew every {lasted(every_s)}" if every_s else "This page stays as it is"
    renewed = f'<meta http-equiv=refresh content="{every_s:.0f}">' if every_s else ""
    body = (
        f"<style>{STYLE}</style>{renewed}<div class=kicker><span>{_when(fleet)}</span></div><h1>{text(title)}</h1>"
        f"{_answers(fleet)}{_left_out(fleet)}{_contents(fleet)}{join(_sections(fleet, links or {}))}"
        f"<p class='dim small'>{stays}. Drawn by {command(line)}</p>"
    )
    top = f"<span class=grow>{breakable(', '.join(fleet.folders), 300)}</span>"
    return document(
        f"{title} · robust fleet", top, body, f"robust-run {__version__} · drawn {date_time(fleet.at_unix_s)}"
    )


def _contents(fleet: Fleet) -> str:
    """Return links to what is far down."""
    if not fleet.runs:
        return ""
    names = [
        ("lemons", "lemon nodes", True),
        ("rates", "failure rates", fleet.shows_rates),
        ("lost", "time lost", bool(fleet.by_kind or fleet.other.seconds)),
        ("nodes", "nodes", bool(fleet.nodes)),
        ("starts", "starts", bool(fleet.starts)),
        ("code", "code", bool(fleet.code)),
        ("runs", "runs", any(each.state != "live" for each in fleet.lines)),
    ]
    links = (f'<li><a href="#{name}">{said}</a></li>' for name, said, is_there in names if is_there)
    return f"<ul class='legend small fl-note screen'>{join(links)}</ul>"


def _title(fleet: Fleet) -> str:
    live = fleet.by_state.get("live", 0)
    return f"{counted(fleet.runs, 'run')}{f', {live:,} live' if live else ''} on {counted(fleet.nodes_seen, 'node')}"


def _when(fleet: Fleet) -> str:
    if fleet.begin_unix_s is None or fleet.end_unix_s is None:
        return f"a fleet, as of {date_time(fleet.at_unix_s)}"
    days = f"{date_time(fleet.begin_unix_s)[:10]} to {date_time(fleet.end_unix_s)[:10]}"
    return f"a fleet, {days}, as of {date_time(fleet.at_unix_s)}"


def _answers(fleet: Fleet) -> str:
    known = f"of {fleet.ettr_runs:,} of {fleet.runs:,} runs; " if fleet.ettr_runs < fleet.runs else ""
    by_node = f"{percent(fleet.ettr_by_node_hours)} of the node time" if fleet.ettr_by_node_hours is not None else ""
    stops = fleet.rates.get("interruptions") if fleet.shows_rates else None
    lemons = len(fleet.lemons.lemons)
    said = _named(fleet) if lemons else next(lemon_lines(fleet.lemons, fleet.at_unix_s)).partition(": ")[2]
    named = "too few failures" if not lemons and fleet.lemons.is_too_few else f"{lemons:,}" if lemons else "none"
    cells = (
        ("ETTR", percent(fleet.ettr) if fleet.ettr is not None else "not known", known + by_node),
        (
            "interruptions per 1,000 node-days",
            figure(stops.per_1000) if stops else "too little time",
            f"95 %: {figure(stops.low)} to {figure(stops.high)}; {stops.count:,} in {figure(stops.node_days)} node-days"
            if stops
            else "less than a node-day is known",
        ),
        ("lemon nodes", named, said),
    )
    drawn = (
        f"<div><div class=label>{text(name)}</div><strong>{text(value)}</strong><small>{text(more)}</small></div>"
        for name, value, more in cells
    )
    return f"<div class='answers plain'>{join(drawn)}</div>"


def _named(fleet: Fleet) -> str:
    found = [each.node for each in fleet.lemons.lemons]
    return ", ".join(found[:3]) + (f" and {len(found) - 3:,} more" if len(found) > 3 else "")


def _left_out(fleet: Fleet) -> str:
    said = [*([f"left out: {skipped_line(fleet)}"] if fleet.skipped else []), *notes_of(fleet)]
    return f"<p class='note fl-note'>{text('; '.join(said), 600)}</p>" if said else ""


def _sections(fleet: Fleet, links: Mapping[str, str]) -> list[str]:
    live = [each for each in fleet.lines if each.state == "live"]
    over = [each for each in fleet.lines if each.state != "live"]
    return [
        _runs("live", "Running now", live, links),
        _course(fleet),
        lemons_section(fleet),
        rates_section(fleet),
        _lost(fleet),
        nodes_section(fleet),
        _starts(fleet),
        _code(fleet),
        _runs("runs", "Runs that are over", over, links),
    ]


def _course(fleet: Fleet) -> str:
    drawn = course_chart(fleet.course)
    note = f"{time_line(fleet)}."
    return section("course", "ETTR over time", drawn, note=note) if drawn else ""


def _lost(fleet: Fleet) -> str:
    phases = phases_of(fleet)
    if not fleet.by_kind and not phases:
        return ""
    done = ", ".join(f"{name} {part.incidents:,}" for name, part in fleet.by_action.items())
    what = f" What was done: {text(done)}." if done else ""
    return section(
        "lost",
        "Time lost",
        _parts("kind", fleet.by_kind, fleet) if fleet.by_kind else "",
        _parts("phase", phases, fleet) if phases else "",
        note=f"Node-hours: the time without training, times the nodes of the run.{what}",
    )


def _parts(head: str, parts: Mapping[str, Part], fleet: Fleet) -> str:
    most = max(each.node_hours for each in parts.values()) or 1.0
    rows = (
        (
            text(name),
            f"{part.incidents:,}",
            bar(part.node_hours / most),
            lasted(part.seconds),
            hours(part.node_hours),
            f"{100 * part.node_hours / fleet.node_hours:.2f} %" if fleet.node_hours else "",
        )
        for name, part in parts.items()
    )
    heads = (head, "#incidents", "", "#time", "#node-hours", "#of all node-hours")
    return table(heads, rows, f"lost by {head}", "fl-rates")


def _starts(fleet: Fleet) -> str:
    if not fleet.starts:
        return ""
    most = max((each.whole_s or 0.0 for each in fleet.starts), default=0.0) or 1.0
    heads = ("nodes", "from", "#starts", "", "#workers run", "#first step", "#whole", "#95 % within")
    note = (
        "Medians: until all workers of an attempt ran, and from there to its first step. Cold: imports from nothing; "
        "warm: a process with torch imported; standby: workers that waited."
    )
    rows = (_start(each, most) for each in fleet.starts)
    return section("starts", "What starting costs", table(heads, rows, "starts by size", "fl-rates"), note=note)


def _start(group: StartGroup, most: float) -> tuple[str, ...]:
    several = f"-{group.most_nodes:,}" if group.most_nodes > group.least_nodes else ""
    times = (group.ready_s, group.first_step_s, group.whole_s, group.whole_p95_s)
    return (
        f"<span class=nowrap>{group.least_nodes:,}{several}</span>",
        text(group.began),
        f"{group.starts:,}",
        bar((group.whole_s or 0.0) / most) if group.whole_s is not None else "",
        *("-" if each is None else lasted(each) for each in times),
    )


def _code(fleet: Fleet) -> str:
    if not fleet.code:
        return ""
    rows = (
        (
            breakable(each.name, 120),
            f"<code>{breakable(each.version, 80)}</code>",
            f"{each.failed:,}",
            f"{each.runs:,}",
            f"{each.rolled_back:,}" if each.rolled_back else "",
        )
        for each in fleet.code[:MOST_CODE]
    )
    heads = ("job", "version", "#failures of its own", "#runs", "#rolled back in")
    more = len(fleet.code) - MOST_CODE
    left = f"<p class=dim>{more:,} more are not listed</p>" if more > 0 else ""
    return section("code", "Code that failed", table(heads, rows, "versions of code that failed"), left)


def _runs(name: str, title: str, lines: Sequence[RunLine], links: Mapping[str, str]) -> str:
    shown = lines[:MOST_RUNS]
    if not shown:
        return ""
    heads = ("run", "state", "began", "lasts" if name == "live" else "lasted", "#nodes", "#ETTR", "incidents")
    more = len(lines) - len(shown)
    return section(
        name,
        title,
        table(heads, (_run(each, links) for each in shown), title.lower(), "stack"),
        f"<p class=dim>{counted(more, 'older run')} not listed</p>" if more > 0 else "",
        note=""
        if name == "live"
        else "The newest first. Lost: the controller is gone, and nothing says how the run ended.",
    )


def _run(line: RunLine, links: Mapping[str, str]) -> tuple[str, ...]:
    name = breakable(line.run_id, 120)
    link = links.get(line.place, "")
    name = f'<a href="{text(quote(link))}">{name}</a>' if link else name
    script = f"<br><span class='dim small'>{breakable(line.name, 120)}</span>" if line.name else ""
    gpus = f"<br><span class='dim small nowrap'>{number(line.gpus)} GPUs</span>" if line.gpus else ""
    return (
        name + script,
        f"<span class='kind nowrap {_TONES[line.state]}'>{line.state}</span>",
        f"<span class=nowrap>{date_time(line.began_s)[:16]}</span>",
        f"<span class=nowrap>{lasted(line.until_s - line.began_s)}</span>",
        f"{line.nodes:,}{gpus}",
        percent(line.ettr) if line.ettr is not None else "-",
        f"{line.incidents:,}<br><span class='dim small'>{text(kinds_text(line.kinds))}</span>"
        if line.incidents
        else "",
    )
