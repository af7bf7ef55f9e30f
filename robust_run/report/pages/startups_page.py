"""The page of start-ups across jobs: phases by number of nodes as bars and tables, nodes that are slow again and again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from robust_run.report.pages.frame import document
from robust_run.report.pages.markup import breakable, command, join, section, table, text
from robust_run.report.pages.words import count, date_time, number, percent
from robust_run.report.startup.profile_text import TITLES, name_of
from robust_run.report.startup.profile_types import UNREAD_MEANINGS, PhaseFigures, SlowNode, StartGroup, StartProfile
from robust_run.report.startup.style import CLASSES, STYLE
from robust_run.report.startup.types import MEANINGS, PHASES
from robust_run.report.startup.words import BEFORE, SHORT, seconds
from robust_run.version import __version__

_UNITS = 1000
MOST_UNREAD = 200


def startups_html(profile: StartProfile, at_unix_s: float) -> str:
    """Return the page as one HTML file."""
    title = f"{count(profile.starts, 'start')} of {count(profile.runs, 'run')}"
    parts = [
        section("slow", "Slow again and again", _slow(profile), note=_compared(profile)),
        *(_groups(kind, heading, profile) for kind, heading in TITLES.items()),
        _unread(profile),
    ]
    again = command(f"robust report --startups {shlex.join(profile.folders)} --html FILE")
    body = (
        f"<style>{STYLE}</style><div class=kicker><span>start-ups, as of {date_time(at_unix_s)}</span></div><h1>{text(title)}</h1>"
        f"{_left_out(profile)}{join(parts)}<p class='dim small'>This page stays as it is. Drawn anew by {again}</p>"
    )
    top = f"<span class=grow>{breakable(', '.join(profile.folders), 200)}</span>"
    return document(f"{title} · robust-run", top, body, f"robust-run {__version__} · drawn {date_time(at_unix_s)}")


def _left_out(profile: StartProfile) -> str:
    said = [f'<a href="#unread">{count(len(profile.unread), "run")} left out</a>'] if profile.unread else []
    if profile.unfinished_starts:
        said.append(f"{count(profile.unfinished_starts, 'start')} without a first step of all ranks not counted")
    return f"<p class=note>{'; '.join(said)}</p>" if said else ""


def _compared(profile: StartProfile) -> str:
    if not profile.starts_compared:
        return "No node was compared with others: that needs starts of several nodes."
    return (
        f"{count(profile.nodes_compared, 'node')} compared with the others of the same start, in "
        f"{count(profile.starts_compared, 'start')} of several nodes. The node with rank 0 has more to do, and is not judged."
    )


def _slow(profile: StartProfile) -> str:
    if not profile.slow_nodes:
        return "" if not profile.starts_compared else "<p>No node is slow again and again.</p>"
    heads = ("node", "#slow in", "#of its starts", "#runs", "#other nodes", "where")
    return table(heads, map(_slow_row, profile.slow_nodes), "nodes that are slow again and again", "stack")


def _slow_row(node: SlowNode) -> tuple[str, ...]:
    where = (
        f"{text(SHORT[each.phase])}: {seconds(each.extra_s)} s more in the median"
        f"{f', {each.times:.1f} times as long' if each.times else ''} <span class=dim>({count(each.starts, 'start')})</span>"
        for each in node.phases
    )
    return (
        f"<b>{breakable(node.node, 120)}</b>",
        percent(node.slow_starts / node.starts),
        f"{number(node.slow_starts)} of {number(node.starts)}",
        f"{number(node.runs)} of {number(node.runs_compared)}",
        percent(node.others_share),
        "<br>".join(where),
    )


def _groups(kind: str, heading: str, profile: StartProfile) -> str:
    groups = [group for group in profile.groups if group.kind == kind]
    if not groups:
        return ""
    heads = ("phase", *(f"#{count(group.nodes, 'node')}" for group in groups))
    note = (
        "Of each number of nodes the medians of the phases, one after the other; the line is where 95 % of the starts had made "
        "their first step. In the table: seconds, median and 95 % of starts; of a phase, of the median rank."
    )
    return section(
        kind,
        heading.capitalize(),
        f"<div class=rr-wf>{join(_bars(groups))}</div>",
        table(heads, _rows(groups), f"{heading} by phase and number of nodes"),
        note=note,
    )


def _bars(groups: Sequence[StartGroup]) -> Iterator[str]:
    used = {each.phase for group in groups for each in group.phases if each.phase not in BEFORE}
    yield '<ul class="rr-wf-key">'
    for phase in PHASES:
        if phase in used:
            square = f'<rect class="{CLASSES[phase]}" width="10" height="10"/>'
            yield f'<li title="{text(MEANINGS[phase])}"><svg class="rr-wf-swatch" viewBox="0 0 10 10" aria-hidden="true">{square}</svg>'
            yield f"{text(SHORT[phase])}</li>"
    whole_s = max(max(group.p95_s, _sum(group)) for group in groups) or 1.0
    yield '</ul><ul class="rr-wf-rows">'
    for group in groups:
        label = f"{count(group.nodes, 'node')} · {count(group.starts, 'start')}"
        yield f'<li class="rr-wf-row"><span class="rr-wf-who">{label}</span>'
        yield from _bar(group, label, whole_s)
        yield f'<span class="rr-wf-end">{seconds(group.median_s)} s</span></li>'
    yield "</ul>"


def _sum(group: StartGroup) -> float:
    return sum(each.median_s for each in group.phases if each.phase not in BEFORE)


def _bar(group: StartGroup, label: str, whole_s: float) -> Iterator[str]:
    told = ", ".join(f"{SHORT[each.phase]} {seconds(each.median_s)} s" for each in group.phases)
    yield f'<svg viewBox="0 0 {_UNITS} 20" preserveAspectRatio="none" role="img" aria-label="{text(f"{label}: {told}")}">'
    at = 0.0
    for each in group.phases:
        if each.phase in BEFORE:
            continue
        wide = _UNITS * each.median_s / whole_s
        title = f"{SHORT[each.phase]}: median {each.median_s:.2f} s, 95 % {each.p95_s:.2f} s ({MEANINGS[each.phase]})"
        yield f'<rect class="{CLASSES[each.phase]}" x="{at:.1f}" y="2" width="{max(wide, 0.5):.1f}" height="16">'
        yield f"<title>{text(title)}</title></rect>"
        at += wide
    line = min(_UNITS * group.p95_s / whole_s, _UNITS - 1.0)
    yield f'<path d="M{line:.1f} 0V20" stroke="currentColor" stroke-width="2" vector-effect="non-scaling-stroke" fill="none">'
    yield f"<title>95 % of starts: {group.p95_s:.2f} s</title></path></svg>"


def _rows(groups: Sequence[StartGroup]) -> Iterator[tuple[str, ...]]:
    yield ("starts", *(number(group.starts) for group in groups))
    yield ("<b class=nowrap>to the first step</b>", *(_cell(group.median_s, group.p95_s) for group in groups))
    for phase in PHASES:
        found = [next((each for each in group.phases if each.phase == phase), None) for group in groups]
        if not any(found):
            continue
        before = (
            " <span class='dim small'>(before the launcher: not in the time above)</span>" if phase in BEFORE else ""
        )
        cells = []
        for each, group in zip(found, groups, strict=True):
            few = (
                f"<br><span class='dim small'>in {number(each.starts)}</span>"
                if each and each.starts < group.starts
                else ""
            )
            cells.append(_cell(each.median_s, each.p95_s, _longest(each)) + few if each else "")
        yield (f"<span class=nowrap title='{text(MEANINGS[phase])}'>{text(SHORT[phase])}</span>{before}", *cells)


def _longest(each: PhaseFigures) -> str:
    run = name_of(each.longest_run)
    return f"longest: {seconds(each.longest_s)} s on {each.longest_node} in {run}"


def _cell(median_s: float, p95_s: float, title: str = "") -> str:
    said = f' title="{text(title, 300)}"' if title else ""
    return f"<span class=nowrap{said}>{seconds(median_s)} <span class=dim>/ {seconds(p95_s)}</span></span>"


def _unread(profile: StartProfile) -> str:
    if not profile.unread:
        return ""
    rows = (
        (
            breakable(name_of(each.path), 200),
            text(each.kind),
            f"<span class=small>{breakable(each.why, 400)}</span>",
        )
        for each in profile.unread[:MOST_UNREAD]
    )
    more = len(profile.unread) - MOST_UNREAD
    note = "; ".join(
        f"{text(kind)}: {text(UNREAD_MEANINGS[kind])}" for kind in dict.fromkeys(each.kind for each in profile.unread)
    )
    return section(
        "unread",
        "Left out",
        table(("run", "why", "in words"), rows, "runs that are left out", "stack"),
        f"<p class=dim>{count(more, 'more run')} not listed</p>" if more > 0 else "",
        note=note,
    )
