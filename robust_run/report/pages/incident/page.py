"""The page of one incident: what happened, who did it, why, and what was done, in that order of urgency. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.report.pages.families import GroupFamily, families
from robust_run.report.pages.frame import document
from robust_run.report.pages.grid import MOST_CELLS, grid
from robust_run.report.pages.incident import parts
from robust_run.report.pages.incident.answers import LARGE, answers, parted_sentence
from robust_run.report.pages.markup import breakable, join, section, text
from robust_run.report.pages.rules import KIND_WORDS
from robust_run.report.pages.stack_tree import stack_trees
from robust_run.report.pages.states import RankState, is_older, places_of, states_of
from robust_run.report.pages.types import IncidentPage
from robust_run.report.pages.wait_graph import graph_of, wait_graph
from robust_run.report.pages.words import as_of, clock_time, count, date_time, incident_name, lasted
from robust_run.tracer.stacks.cluster import clusters
from robust_run.tracer.verdict import SceneView, seen
from robust_run.version import __version__


def incident_html(page: IncidentPage) -> str:
    """Return the page as one HTML file."""
    if page.scene is not None and is_older(page.scene, page.incident):
        page = msgspec.structs.replace(page, scene=None)
    found = seen(page.scene) if page.scene is not None else SceneView()
    states = states_of(page, found.waits)
    incident = page.incident
    body = join(
        (
            _head(page),
            answers(page, states),
            "<section id=act aria-label='What to do next and what it cost'>",
            f"<div class=pair><div>{parts.what_next(page)}</div><div>{parts.what_lost(page.lost)}</div></div></section>",
            parts.timeline(page),
            _ranks(page, states, families(found.groups, len(states), incident.verdict.group)),
            _waiting(page, found, states),
            _stacks(page, states, found.inside),
            parts.evidence(page),
        )
    )
    title = f"{incident.verdict.sentence} · incident {incident.id} of {page.run_id}"
    return document(title, _top(page), body, _footer(page))


def _top(page: IncidentPage) -> str:
    number = page.incident.id
    before = f"<a href={incident_name(number - 1)} rel=prev>‹ incident {number - 1}</a>" if number > 1 else ""
    after = (
        f"<a href={incident_name(number + 1)} rel=next>incident {number + 1} ›</a>" if number < page.incidents else ""
    )
    return (
        f"<span class=grow><a href=../report.html data-live=/>{text(page.run_id, 120)}</a> › incident {number}"
        f"{f' of {page.incidents}' if page.incidents > 1 else ''}</span>{before}{after}"
    )


def _capital(words: str) -> str:
    """Begin a sentence; addresses stay what they are."""
    return words if "://" in words.split(" ", 1)[0] else words[:1].upper() + words[1:]


def _head(page: IncidentPage) -> str:
    incident = page.incident
    head, rest = parted_sentence(page)
    if rest and len(head) + len(rest) < LARGE:
        head, rest = f"{head}; {rest}", ""
    head = _capital(head)
    tone = "warn" if incident.action.name == "report" or incident.verdict.confidence == "low" else ""
    smaller = f"<span class=rest>{breakable(_capital(rest), 1000)}</span>" if rest else ""
    return (
        f"<div class=kicker><span class='kind {tone}'>{KIND_WORDS.get(incident.verdict.kind, 'failure')}</span>"
        f"<span>attempt {incident.attempt}</span><span>{date_time(incident.onset_s)}</span>"
        f"<span>{incident.verdict.confidence} confidence</span>{as_of(page.drawn)}</div>"
        f"<h1>{breakable(head, 1000)}{smaller}</h1>"
    )


def _seen(page: IncidentPage) -> str:
    """Return of when it is what ranks were seen to do, as a sentence."""
    if page.scene is None:
        return ""
    at_s = page.scene.at_unix_s
    if not at_s:
        return "It is not on record when that was seen."
    apart_s = at_s - page.incident.decided_s
    when = (
        f", {lasted(abs(apart_s))} {'after' if apart_s > 0 else 'before'} the verdict" if abs(apart_s) >= 0.05 else ""
    )
    return f"As seen at {clock_time(at_s)}{when}."


def _ranks(page: IncidentPage, states: dict[int, RankState], kinds: tuple[GroupFamily, ...]) -> str:
    if not states:
        return ""
    nodes = len(places_of(page))
    note = f"{count(len(states), 'rank')} on {count(nodes, 'node')}"
    if len(states) > MOST_CELLS:
        note += "; a cell stands for several ranks and has the colour of the worst of them"
    if page.scene is None:
        note += "; what the others did was not looked at, since how the attempt ended was enough"
    return section("ranks", "All ranks", grid(places_of(page), kinds, states), note=f"{note}. {_seen(page)}".strip())


def _waiting(page: IncidentPage, found: SceneView, states: dict[int, RankState]) -> str:
    picture = wait_graph(graph_of(found.waits, states, found.chains))
    lines = join(map(_chain, found.lines))
    note = f"{_seen(page)} Ranks that wait in the same call are one box; an arrow leads to those they wait for."
    drawn = f"<ul class=chains>{lines}</ul>{picture}" if lines else picture
    return section("waits", "Who waits for whom", drawn, note=note) if picture else ""


def _chain(line: str) -> str:
    """Return a line about who waits for whom: what it is about, and the chain below it."""
    about, colon, chain = line.partition(": ")
    return f"<li><span class='small dim'>{breakable(about + colon, 400)}</span><br>{breakable(chain, 400)}</li>"


def _stacks(page: IncidentPage, states: dict[int, RankState], inside: Sequence[str]) -> str:
    if page.scene is None:
        return ""
    trees = stack_trees(clusters(page.scene.ranks), states)
    silent = page.scene.silent_nodes
    more = f"<h3>Inside NCCL</h3><pre tabindex=0>{text(chr(10).join(inside), 8000)}</pre>" if inside else ""
    if silent:
        more += (
            f"<p class=dim>No answer from {text(', '.join(silent[:20]), 400)}{' …' if len(silent) > 20 else ''}.</p>"
        )
    if not trees and not more:
        return ""
    note = f"{_seen(page)} Python stacks of the main threads, outermost call first; what several ranks share is written once."
    return section("stacks", "What the ranks were doing", trees, more, note=note)


def _footer(page: IncidentPage) -> str:
    number = page.incident.id
    return (
        f"robust-run {__version__} · {text(page.script, 200)} · drawn {date_time(page.drawn.at_s)} · data: "
        f"<a href={number:04d}.json>{number:04d}.json</a>"
        + (f", <a href={number:04d}.scene.json>{number:04d}.scene.json</a>" if page.scene is not None else "")
    )
