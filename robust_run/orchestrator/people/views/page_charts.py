"""Pictures of a job of several roles: members over time, how much roles were used, how full queues were. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from urllib.parse import quote

from robust_run.orchestrator.people.views.history import History, Loss, MemberCourse, Stretch, StretchKind
from robust_run.orchestrator.rules.course_points import CoursePoint, Fill, share_between
from robust_run.report.pages.charts import LEFT, NARROW, RIGHT, WIDE
from robust_run.report.pages.markup import join, section, text
from robust_run.report.pages.words import clock_time, count, lasted, number, percent
from robust_run.roles.view_words import RolesView

#: Members that have a row; those with losses first, of more.
MOST_ROWS = 64
#: Stretches of a row; more would be narrower than a pixel.
MOST_STRETCHES = 300
#: Stretches in which waiting is drawn, and shades of it.
_WAITS, _SHADES = 120, 4
MOST_QUEUES, MOST_ROLES, MOST_MARKS = 16, 8, 100
#: Of a row, in units of its picture: its length, and the least that is seen of what is red.
_LONG, _LEAST = 1000.0, 4.0
_HIGH, _TOP = 84, 14

_KINDS: Mapping[StretchKind, tuple[str, str]] = {
    "starts": ("k-starting", "starts"),
    "runs": ("k-productive", "runs"),
    "down": ("a-bad", "down"),
    "ends": ("k-ending", "was told to end"),
}


def used_bar(share: float) -> str:
    """Return a share as a bar."""
    wide = max(min(share, 1.0), 0.0) * 150
    return (
        f'<svg class=strip viewBox="0 0 150 12" preserveAspectRatio=none role=img aria-label="{percent(share)} used">'
        f'<rect class=k-productive width="{wide:.1f}" height=12 /></svg>'
    )


# --- members over time


def timeline(history: History, points: Sequence[CoursePoint], pages: Mapping[str, str]) -> str:
    """Return a row for each member: when it ran, began, was down, and how much it waited meanwhile."""
    members = [member for member in history.members if member.stretches]
    begin_s, end_s = history.begun_s, history.known_s
    if not members or end_s <= begin_s:
        return ""
    drawn = members
    if len(members) > MOST_ROWS:
        lost = {loss.member for loss in history.losses}
        chosen = {id(each) for each in sorted(members, key=lambda each: each.name not in lost)[:MOST_ROWS]}
        drawn = [member for member in members if id(member) in chosen]
    waits = _waits(points, begin_s, end_s)
    rows, role = [], ""
    for member in drawn:
        if member.role != role:
            role = member.role
            rows.append(f"<h3>{text(role, 80)}</h3>")
        rows.append(_row(member, begin_s, end_s, waits.get(member.name, ()), pages))
    axis = (
        f"<div class='row axis small dim'><span></span><div class=ends><span>{clock_time(begin_s)}</span>"
        f"<span>{clock_time(end_s)}</span></div></div>"
    )
    left = len(members) - len(drawn)
    more = f"<p class=dim>{count(left, 'more member')} not drawn</p>" if left else ""
    return section(
        "timeline", "Members over time", _key(bool(waits)), f"<div class=lives>{join(rows)}{axis}</div>", more
    )


def _key(with_waits: bool) -> str:
    kinds = [*_KINDS.values(), *((("waits-at-queues", "waits at queues, the darker the more"),) if with_waits else ())]
    return (
        "<ul class='legend small'>"
        + join(
            f"<li><svg class=swatch viewBox='0 0 8 8' aria-hidden=true><rect class={css} width=8 height=8 /></svg>{said}</li>"
            for css, said in kinds
        )
        + "</ul>"
    )


def _row(
    member: MemberCourse,
    begin_s: float,
    end_s: float,
    waits: Sequence[tuple[float, float, float]],
    pages: Mapping[str, str],
) -> str:
    def x(at_s: float) -> float:
        return _LONG * (min(max(at_s, begin_s), end_s) - begin_s) / (end_s - begin_s)

    calm = [stretch for stretch in member.stretches if stretch.kind != "down"]
    down = [stretch for stretch in member.stretches if stretch.kind == "down"]
    order = (*_longest(calm), *_longest(down))  # what is red stands above the rest
    parts = [_stretch(stretch, x) for stretch in order]
    parts += [
        f'<rect class=waits-at-queues x="{x(one_s):.1f}" y=9 width="{max(x(other_s) - x(one_s), 0.5):.1f}" height=3 '
        f'opacity="{share:g}"><title>waits at queues: {share:.0%} of the time or less</title></rect>'
        for one_s, other_s, share in waits
    ]
    said = f"{member.name}: {count(len(down), 'time')} down"
    where = pages.get(member.runs[-1], "") if member.runs else ""
    name = text(member.name, 80)
    link = f'<a href="{quote(where)}">{name}</a>' if where else name
    return (
        f'<div class=row><span>{link}</span><svg class=life viewBox="0 0 {_LONG:g} 12" preserveAspectRatio=none role=img '
        f'aria-label="{text(said)}">{join(parts)}</svg></div>'
    )


def _longest(stretches: list[Stretch]) -> list[Stretch]:
    if len(stretches) <= MOST_STRETCHES:
        return stretches
    least = sorted((stretch.end_s - stretch.begin_s for stretch in stretches), reverse=True)[MOST_STRETCHES]
    return [stretch for stretch in stretches if stretch.end_s - stretch.begin_s > least]


def _stretch(stretch: Stretch, x: Callable[[float], float]) -> str:
    css, said = _KINDS[stretch.kind]
    left, right = x(stretch.begin_s), x(stretch.end_s)
    wide = max(right - left, _LEAST if stretch.kind == "down" else 0.5)
    left = min(left, _LONG - wide)
    generation = f", generation {stretch.generation}" if stretch.kind == "runs" else ""
    title = f"{said} for {lasted(stretch.end_s - stretch.begin_s)} from {clock_time(stretch.begin_s)}{generation}"
    high = 9 if stretch.kind != "down" else 12
    return f'<rect class={css} x="{left:.1f}" width="{wide:.1f}" height={high}><title>{title}</title></rect>'


def _waits(points: Sequence[CoursePoint], begin_s: float, end_s: float) -> dict[str, list[tuple[float, float, float]]]:
    """Return by member when it waited at queues: from, until, and which share of that time, in few shades."""
    every = max(len(points) // _WAITS, 1)
    some = [*points[::every], *points[-1:]]
    found: dict[str, list[tuple[float, float, float]]] = {}
    for before, after in pairwise(some):
        for name, total in after.members.items():
            share = share_between(before.members.get(name), total)
            shade = round((share or 0.0) * _SHADES) / _SHADES
            if not shade or after.at_s <= begin_s or before.at_s >= end_s:
                continue
            own = found.setdefault(name, [])
            if own and own[-1][1] == before.at_s and own[-1][2] == shade:
                own[-1] = (own[-1][0], after.at_s, shade)
            else:
                own.append((before.at_s, after.at_s, shade))
    return found


# --- lines over time


_MARK = "<li><svg class=swatch viewBox='0 0 12 12' aria-hidden=true><path class=mark d='M6 0v12'/></svg>loss of a member</li>"


def idle(points: Sequence[CoursePoint], roles: Sequence[str], losses: Sequence[Loss]) -> str:
    """Return how much each role was used over time: a line for each."""
    shown = [role for role in roles if any(role in point.roles for point in points)][:MOST_ROLES]
    lines = {role: _used(points, role) for role in shown}
    lines = {role: line for role, line in lines.items() if line}
    if not lines or len(points) < 3:
        return ""
    numbers = {role: index for index, role in enumerate(lines, 1)}
    key = join(
        f"<li><svg class=swatch viewBox='0 0 12 12' aria-hidden=true><path class='node n{place}' d='M0 6h12'/></svg>"
        f"{text(role, 80)}</li>"
        for role, place in numbers.items()
    )

    def picture(wide: int) -> str:
        return _picture(
            wide,
            points,
            100.0,
            "used, percent",
            losses,
            lambda x, y: join(
                f'<path class="node n{numbers[role]}" d="M{_path(line, x, y)}"><title>{text(role, 80)}</title></path>'
                for role, line in lines.items()
            ),
        )

    note = "The share of their time in which workers did not wait at queues."
    legend = f"<ul class='legend small'>{key}{_MARK if losses else ''}</ul>"
    return section("used", "Use of roles over time, percent", _both(picture), legend, note=note)


def _used(points: Sequence[CoursePoint], role: str) -> list[tuple[float, float]]:
    every = max(len(points) // _WAITS, 1)
    some = [*points[::every], *points[-1:]]
    found = []
    for before, after in pairwise(some):
        share = share_between(before.roles.get(role), after.roles[role]) if role in after.roles else None
        if share is not None:
            found.append((after.at_s, 100.0 * (1.0 - share)))
    return found


def queues(points: Sequence[CoursePoint], view: RolesView, losses: Sequence[Loss]) -> str:
    """Return a picture for each queue: how many items waited, and were worked on."""
    names = sorted({name for point in points for name in point.queues})
    figures = [_queue(points, name, view, losses) for name in names[:MOST_QUEUES]] if len(points) > 2 else []
    figures = [figure for figure in figures if figure]
    if not figures:
        return ""
    left = len(names) - MOST_QUEUES
    more = f"<p class=dim>{count(left, 'more queue')} not drawn</p>" if left > 0 else ""
    key = (
        "<ul class='legend small'><li><svg class=swatch viewBox='0 0 12 12' aria-hidden=true><path class=band d='M0 0h12v12H0z'/>"
        "</svg>wait, least to most</li>"
        "<li><svg class=swatch viewBox='0 0 12 12' aria-hidden=true><path class='node n2' d='M0 6h12'/></svg>leased</li>"
        f"{_MARK if losses else ''}</ul>"
    )
    return section("queues", "Queues over time, items", f"<div class=usage>{join(figures)}</div>", key, more)


def _queue(points: Sequence[CoursePoint], name: str, view: RolesView, losses: Sequence[Loss]) -> str:
    known = [(point.at_s, point.queues[name]) for point in points if name in point.queues]
    if len(known) < 2:
        return ""
    last = known[-1][1]
    most = max(max(fill.high, fill.leased) for _, fill in known)
    top = float(most + most % 2 if most > 1 else 1)  # its half is a whole number
    room = f" of {number(view.queue_items)}" if view.queue_items else ""
    peak = max(known, key=lambda each: each[1].high + each[1].leased)
    said = f"{number(last.leased)} leased; {number(last.kept)} kept"
    if most:
        said += f"; fullest at {clock_time(peak[0])}, {number(peak[1].high)} and {number(peak[1].leased)} leased"

    def draw(x: Callable[[float], float], y: Callable[[float], float]) -> str:
        over = _path([(at_s, fill.high) for at_s, fill in known], x, y)
        under = _path([(at_s, fill.low) for at_s, fill in reversed(known)], x, y)
        line = _path([(at_s, fill.high) for at_s, fill in known], x, y)
        floor = f"L{x(known[-1][0]):.1f} {y(0):.1f}L{x(known[0][0]):.1f} {y(0):.1f}Z"
        leased = _path([(at_s, fill.leased) for at_s, fill in known], x, y)
        return (
            f'<path class=band d="M{over}{floor}"/><path class=band d="M{over}L{under}Z"/><path class=cum d="M{line}"/>'
            f'<path class="node n2" d="M{leased}"/>'
        )

    def picture(wide: int) -> str:
        return _picture(wide, points, top, f"{text(name, 80)}: items", losses, draw)

    return (
        f"<figure><figcaption><span class=label>{text(name, 80)}</span> <strong>{number(_waiting(last))}{room}</strong> "
        f"<small class=dim>{said}</small></figcaption>{_both(picture)}</figure>"
    )


def _waiting(fill: Fill) -> int:
    return fill.high


def _picture(
    wide: int,
    points: Sequence[CoursePoint],
    top: float,
    label: str,
    losses: Sequence[Loss],
    draw: Callable[[Callable[[float], float], Callable[[float], float]], str],
) -> str:
    begin_s, end_s = points[0].at_s, points[-1].at_s

    def x(at_s: float) -> float:
        return LEFT + wide * (at_s - begin_s) / max(end_s - begin_s, 1e-3)

    def y(value: float) -> float:
        return _TOP + _HIGH * (1.0 - value / top)

    grid = join(
        f'<path class=grid d="M{LEFT} {y(value):.1f}h{wide}"/><text class=dim text-anchor=end x={LEFT - 8} '
        f'y="{y(value) + 4:.1f}">{number(value)}</text>'
        for value in ((0.0, top / 2, top) if top >= 2 else (0.0, top))
    )
    marks = join(
        f'<path class=mark d="M{x(loss.at_s):.1f} {_TOP}v{_HIGH}"><title>{text(loss.member, 80)} lost</title></path>'
        for loss in losses[-MOST_MARKS:]
        if begin_s <= loss.at_s <= end_s
    )
    bottom = _TOP + _HIGH + 18
    return (
        f'<svg viewBox="0 0 {LEFT + wide + RIGHT} {bottom + 2}" role=img aria-label="{label}">{grid}{marks}{draw(x, y)}'
        f"<text class=dim x={LEFT} y={bottom}>{clock_time(begin_s)}</text>"
        f"<text class=dim text-anchor=end x={LEFT + wide} y={bottom}>{clock_time(end_s)}</text></svg>"
    )


def _both(picture: Callable[[int], str]) -> str:
    return f"<div class='chart wide'>{picture(WIDE)}</div><div class='chart narrow'>{picture(NARROW)}</div>"


def _path(line: Iterable[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return "L".join(f"{x(at_s):.1f} {y(value):.1f}" for at_s, value in line)
