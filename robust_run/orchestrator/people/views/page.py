"""The page of a job of several roles: how each role is used, when each member ran and was down, how full queues were. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from robust_run.orchestrator.people.views import page_charts as charts
from robust_run.orchestrator.people.views.history import History, Loss, MemberCourse
from robust_run.orchestrator.people.views.whole import headline
from robust_run.orchestrator.rules.course_points import CoursePoint, idle_of
from robust_run.report.pages.frame import document
from robust_run.report.pages.markup import breakable, command, join, section, table, text
from robust_run.report.pages.words import clock_time, count, date_time, lasted, number, percent
from robust_run.roles.view_words import MemberView, RolesView, RoleView
from robust_run.version import __version__

#: Rows of the tables, and members that are drawn; more are counted.
MOST_LOSSES = 300
MOST_MEMBERS = 400
MOST_MOMENTS = 200


class RolesPage(msgspec.Struct, frozen=True, kw_only=True):
    """All that is on the page."""

    run: str
    """Name of the job's run directory."""
    view: RolesView
    history: History
    points: tuple[CoursePoint, ...] = ()
    pages: Mapping[str, str] = {}
    """Pages of members, below the run directory, by the names of their runs."""
    incidents: Mapping[str, Sequence[tuple[float, str]]] = {}
    """By the name of a member's run: when its incidents were noticed, and their pages below the run directory."""
    at_s: float = 0.0
    """When it is drawn."""
    again: str = ""
    """The command that draws it anew."""


def roles_html(page: RolesPage) -> str:
    """Return the page as one HTML file."""
    body = join(
        (
            _head(page),
            _waits(page),
            _roles(page),
            charts.timeline(page.history, page.points, page.pages),
            charts.idle(page.points, [role.name for role in page.view.roles], page.history.losses),
            charts.queues(page.points, page.view, page.history.losses),
            _losses(page),
            _members(page),
            _moments(page),
            _definitions(),
        )
    )
    top = f"<span class=grow>{text(page.run, 120)}</span>"
    footer = f"robust-run {__version__} · drawn {date_time(page.at_s)}"
    return document(f"{_state(page)[0]} · {page.view.name} · robust-run", top, body, footer)


def _state(page: RolesPage) -> tuple[str, str]:
    """Return how the job is in a word, and the tone of it."""
    view = page.view
    if view.phase == "over":
        return ("done", "good") if view.code == 0 else ("stopped", "warn") if _was_asked(view) else ("failed", "")
    if not view.is_led:
        return "no leader", "warn"
    return {"going": ("running", "good")}.get(view.phase, ("begins" if view.phase == "new" else view.phase, "warn"))


def _was_asked(view: RolesView) -> bool:
    return view.sentence.endswith(" asked for it")


def _head(page: RolesPage) -> str:
    word, tone = _state(page)
    history = page.history
    if page.view.phase != "over":
        word = f"as of {clock_time(page.at_s)}, {word}"
    facts = [f"<span>since {date_time(history.begun_s)}</span>"] if history.begun_s else []
    facts += [f"<span>ended {date_time(history.ended_s)}</span>"] if history.ended_s is not None else []
    facts += [f"<span>led on {text(page.view.node, 80)}</span>"] if page.view.node else []
    again = ""
    if page.view.phase != "over" and page.again:
        again = f"<p class='dim small'>This page stays as it is. Drawn anew by {command(page.again)}</p>"
    return (
        f"<div class=kicker><span class='kind {tone}'>{word}</span>{join(facts)}</div>"
        f"<h1>{text(headline(page.view), 600)}</h1>{_figures(page)}{again}"
    )


def _figures(page: RolesPage) -> str:
    history = page.history
    back = sorted(loss.back_s - loss.at_s for loss in history.losses if loss.back_s is not None)
    not_back = sum(loss.back_s is None for loss in history.losses)
    figures = [
        (lasted(history.known_s - history.begun_s), "since it began" if history.ended_s is None else "it lasted")
    ]
    figures.append((number(len(page.view.roles)), f"roles, {count(len(history.members), 'member')}"))
    figures.append(
        (number(len(history.losses)), "losses of members" if len(history.losses) != 1 else "loss of a member")
    )
    if back:
        figures.append((lasted(back[len(back) // 2]), f"until one was back, median; longest {lasted(back[-1])}"))
    if not_back:
        figures.append((number(not_back), "did not come back"))
    boxes = join(f"<div><strong>{value}</strong><small>{text(said)}</small></div>" for value, said in figures)
    return f"<div class=figures>{boxes}</div>"


def _waits(page: RolesPage) -> str:
    if not page.view.waits:
        return ""
    lines = join(f"<li>{breakable(line, 900)}</li>" for line in page.view.waits)
    note = "At the moment of this page. An empty queue is no fault; robust why tells what the last of each chain does."
    return section("waits", "Who waits for whom", f"<ul class=chains>{lines}</ul>", note=note)


def _roles(page: RolesPage) -> str:
    idle = idle_of(page.points)
    rows = [_role(page, role, idle.get(role.name, role.idle)) for role in page.view.roles]
    heads = ("role", "members", "restart", "used", "", "#losses", "#down")
    note = "Used: the share of their time in which workers of a role did not wait at queues, since the job began."
    return section("roles", "Roles", table(heads, rows, "roles", "stack"), note=note)


def _role(page: RolesPage, role: RoleView, idle: float | None) -> tuple[str, ...]:
    members = [member for member in page.history.members if member.role == role.name]
    losses = [loss for loss in page.history.losses if loss.member.rpartition("/")[0] == role.name]
    down_s = sum(
        stretch.end_s - stretch.begin_s for member in members for stretch in member.stretches if stretch.kind == "down"
    )
    here_s = sum(stretch.end_s - stretch.begin_s for member in members for stretch in member.stretches)
    used = None if idle is None else round(1.0 - idle, 6)
    ready = sum(member.ready for member in role.members)
    size = f"{ready} of {role.wanted} ready" if page.view.phase != "over" else count(len(_ran(members)), "member")
    limits = (
        f"<br><span class='dim small nowrap'>{role.fewest} to {role.most}</span>" if role.fewest != role.most else ""
    )
    down = f"{lasted(down_s)}<br><span class='dim small nowrap'>{percent(down_s / here_s)}</span>" if down_s else "0"
    return (
        f"<b>{text(role.name, 80)}</b>",
        f"<span class=nowrap>{size}</span>{limits}",
        text(role.restart),
        "<span class=dim>not known</span>" if used is None else percent(used),
        "" if used is None else charts.used_bar(used),
        number(len(losses)),
        down,
    )


def _ran(members: Sequence[MemberCourse]) -> list[MemberCourse]:
    return [member for member in members if member.runs]


def _losses(page: RolesPage) -> str:
    losses = page.history.losses
    if not losses:
        return section("losses", "Losses", "<p class=dim>None.</p>")
    rows = [_loss(page, loss) for loss in losses[::-1][:MOST_LOSSES]]
    left = len(losses) - len(rows)
    more = f"<p class=dim>{number(left)} older losses not listed</p>" if left > 0 else ""
    note = "From the end of the first worker until the member could be relied on again."
    return section(
        "losses",
        "Losses",
        table(("when", "member", "what happened", "#back after"), rows, "losses", "stack"),
        more,
        note=note,
    )


def _loss(page: RolesPage, loss: Loss) -> tuple[str, ...]:
    back = lasted(loss.back_s - loss.at_s) if loss.back_s is not None else "<span class=bad>not back</span>"
    said = breakable(loss.sentence or "its launcher does not say why", 400)
    return (
        f"<span class=nowrap>{clock_time(loss.at_s)}</span>",
        _linked(page, loss.run, loss.member),
        _to_incident(page, loss, said),
        back,
    )


#: So long after a loss its launcher has made an incident of it.
_NOTICED_S = 60.0


def _to_incident(page: RolesPage, loss: Loss, said: str) -> str:
    """Return what happened, with a link to the page of the incident that its launcher made of it."""
    found = [(abs(at_s - loss.at_s), where) for at_s, where in page.incidents.get(loss.run, ())]
    near = min(found, default=(_NOTICED_S, ""))
    return f'<a href="{quote(near[1])}">{said}</a>' if near[0] < _NOTICED_S and near[1] else said


def _linked(page: RolesPage, run: str, name: str) -> str:
    where = page.pages.get(run)
    said = f"<span class=nowrap>{text(name, 80)}</span>"
    return f'<a href="{quote(where)}">{said}</a>' if where else said


def _members(page: RolesPage) -> str:
    views = [member for role in page.view.roles for member in role.members if member.starts]
    rows = [_member(page, member) for member in views[:MOST_MEMBERS]]
    left = len(views) - len(rows)
    more = f"<p class=dim>{count(left, 'more member')} not listed</p>" if left > 0 else ""
    heads = ("member", "state", "#generation", "#starts", "node", "last word")
    return section("members", "Members", table(heads, rows, "members", "stack"), more) if rows else ""


def _member(page: RolesPage, member: MemberView) -> tuple[str, ...]:
    run = member.run.removeprefix("members/")
    tone = {"given_up": "bad", "pausing": "bad"}.get(member.state, "")
    state = "ended" if member.state == "held" and page.view.phase == "over" else member.state.replace("_", " ")
    where = "" if run in page.pages else "<br><span class='dim small'>its files are not here</span>"
    return (
        _linked(page, run, member.name) + where,
        f"<span class='nowrap {tone}'>{text(state)}{', ready' if member.ready else ''}</span>",
        number(member.generation),
        number(member.starts),
        breakable(", ".join(member.nodes), 200),
        f"<span class=small>{breakable(member.sentence, 400)}</span>",
    )


def _moments(page: RolesPage) -> str:
    moments = page.history.moments[::-1][:MOST_MOMENTS]
    rows = [(f"<span class=nowrap>{clock_time(each.at_s)}</span>", breakable(each.text, 600)) for each in moments]
    left = len(page.history.moments) - len(moments)
    more = f"<p class=dim>{count(left, 'older moment')} not listed; robust events tells all</p>" if left > 0 else ""
    shown = f"<details id=all-moments><summary>{count(len(rows), 'moment')}, the newest first</summary>"
    listed = table(("when", "what"), rows, "what happened")
    return section("moments", "What happened", f"{shown}{listed}{more}</details>") if rows else ""


_WORDS = {
    "used": "1 less the share of time that workers waited at queues, for an item or for room. A role that is used for half of the"
    " time has twice the members it needs. Waits elsewhere, in a collective for instance, count as use",
    "down": "from the end of a member's first worker until its next workers run; a loss lasts until the member can be relied on",
    "queues": "items that wait, the least and the most of each stretch; leased: somebody works on them. Looked at each second at"
    " first, less often as the job grows older",
}


def _definitions() -> str:
    facts = join(f"<dt>{name}</dt><dd>{text(said)}</dd>" for name, said in _WORDS.items())
    return section("definitions", "What the words mean", f"<dl class='facts small'>{facts}</dl>")
