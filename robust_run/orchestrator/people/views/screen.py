"""The screen of `robust top` of a job of several roles: members by role, queues, waits, what happened last. Pure.

Everything that came from a job or a node is cleaned of what a terminal, or rich's markup, would obey.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from robust_run.launcher.operator.top.keys import Looking
from robust_run.launcher.operator.top.lines import blank, cell, in_lines, one_line, table_of
from robust_run.launcher.operator.views.show import age, length, plural
from robust_run.orchestrator.people.views.history import History, Loss, Moment, RolesNow
from robust_run.orchestrator.people.views.whole import headline
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import MemberView, RolesView, RoleView
from robust_run.terminal import plain as clean

_TONES = {"going": "bold green", "over": "bold blue"}
_STATES = {
    "running": "green",
    "starting": "cyan",
    "waits": "cyan",
    "pausing": "bold red",
    "given_up": "bold red",
    "stopping": "yellow",
    "done": "blue",
    "held": "dim",
}
#: Lines of the upper part: of queues and waits, and of what happened last.
MOST_QUEUES, MOST_WAITS, LAST = 8, 4, 3
BAR = 20

HELP = (
    "up, down, j, k      one line",
    "page up/down, space  one page",
    "home, end, g, G     the first, the last",
    "i                   what happened, and losses, and back",
    "n                   members",
    "h, ?                this, and back",
    "q, escape           go",
)


def screen(shown: RolesNow, looking: Looking, width: int, height: int, trouble: str = "") -> Group:
    """Return a screen of exactly so many lines. `trouble`: why what is shown is old."""
    upper = head(shown, width, trouble, most=2)[: max(height - 4, 1)]
    room = max(height - len(upper) - 1, 0)
    return Group(*upper, *(_pane(shown, looking, width, room) if room else ()), _foot(shown, looking, width))


def rows_of(shown: RolesNow, width: int, height: int, trouble: str = "") -> int:
    """Return how many rows fit below the upper part."""
    return max(height - min(len(head(shown, width, trouble, most=2)), max(height - 4, 1)) - 3, 1)


def total_of(shown: RolesNow, looking: Looking) -> int:
    """Return how many rows there are."""
    return len(_happened(shown.history)) if looking.pane == "incidents" else len(_rows(shown.view))


def plain(shown: RolesNow, width: int) -> Group:
    """Return all there is to say once, for a pipe: no colours, no keys."""
    parts: list[RenderableType] = [*head(shown, width, most=9, last=0), Text("")]
    parts.append(_members(_rows(shown.view), width))
    happened = _happened(shown.history)[:12]
    if happened:
        parts += [Text(""), _events(happened, width, shown.now_s)]
    return Group(*parts)


# --- the upper part


def head(shown: RolesNow, width: int, trouble: str = "", *, most: int, last: int = LAST) -> list[Text]:
    """Return how the job is, its queues as bars, who waits for whom, and what happened last. `most`: lines of a long text."""
    view, history = shown.view, shown.history
    tone = "bold red" if not view.is_led and view.phase != "over" else _TONES.get(view.phase, "bold yellow")
    if view.phase == "over" and view.code:
        tone = "bold red"
    lines = in_lines(headline(view), tone, width, most)
    if trouble:
        lines += in_lines(f"! {trouble}", "bold red", width, most)
    lines += in_lines(_numbers(shown), "", width, most)
    queues = sorted(view.queues.items())
    wide = max((len(name) for name, _ in queues), default=0)
    lines += [_queue(view, name.ljust(min(wide, 24)), counts, width) for name, counts in queues[:MOST_QUEUES]]
    if len(queues) > MOST_QUEUES:
        lines.append(one_line(f"{len(queues) - MOST_QUEUES} more queues", "dim", width))
    for wait in view.waits[:MOST_WAITS]:
        lines += in_lines(f"! {wait}", "yellow", width, most + 1)
    if len(view.waits) > MOST_WAITS:
        lines.append(one_line(f"! {len(view.waits) - MOST_WAITS} more workers wait", "yellow", width))
    for moment in history.moments[-last:] if last else ():
        lines.append(one_line(f"{age(shown.now_s - moment.at_s)} ago: {moment.text}", "dim", width))
    return lines


def _numbers(shown: RolesNow) -> str:
    view, history = shown.view, shown.history
    words = []
    if history.begun_s:
        end_s = history.ended_s if history.ended_s is not None else history.known_s
        words.append(f"{'lasted' if history.ended_s is not None else 'since'} {age(end_s - history.begun_s)}")
    words += [f"{role.name} {_idle(role.idle)}" for role in view.roles if role.idle is not None]
    back = [loss.back_s - loss.at_s for loss in history.losses if loss.back_s is not None]
    losses = f"{len(history.losses)} loss{'' if len(history.losses) == 1 else 'es'}"
    words.append(losses + (f", back after {length(sorted(back)[len(back) // 2])}" if back else ""))
    return ", ".join(words)


def _idle(share: float) -> str:
    return f"idle {share:.0%}"


def _queue(view: RolesView, name: str, counts: Counts, width: int) -> Text:
    """Return a queue as a bar of its room: what waits, and what is worked on; and its numbers."""
    line = Text(f"{clean(name)} ", no_wrap=True, overflow="ellipsis")
    full = _full(view, counts)
    if full is not None:
        waiting = counts.waiting / max(counts.waiting + counts.leased, 1)
        cells = min(round(full * BAR), BAR)
        cells = cells or int(counts.waiting + counts.leased > 0)
        solid = round(cells * waiting)
        line.append("█" * solid, "red" if full >= 0.95 else "green")
        line.append("▒" * (cells - solid), "cyan")
        line.append("·" * (BAR - cells), "dim")
        line.append(f" {full:.0%}".rjust(6))
    kept = f", {counts.kept} kept" if counts.kept else ""
    stale = f", {counts.stale} too old" if counts.stale else ""
    line.append(f"  {counts.waiting} waiting, {counts.leased} leased{kept}, {counts.done} of {counts.put} done{stale}")
    line.truncate(width, overflow="ellipsis")
    return line


def _full(view: RolesView, counts: Counts) -> float | None:
    """Return which share of a queue's room is taken: of items, or of bytes where that is more; None: its room is not known."""
    if not (view.queue_items and view.queue_bytes):
        return None
    return max((counts.waiting + counts.leased) / view.queue_items, counts.bytes / view.queue_bytes)


# --- the lower part


def _pane(shown: RolesNow, looking: Looking, width: int, room: int) -> list[RenderableType]:
    """Return the lower part: a heading and a table, so many lines in all."""
    if looking.pane == "help":
        lines = [Text("Keys", style="bold"), *(Text(f"  {line}") for line in HELP)][:room]
        return [*lines, *blank(room - len(lines))]
    fit = max(room - 2, 0)
    if looking.pane == "incidents":
        happened = _happened(shown.history)
        part: Sequence[tuple[float, str, str]] = happened[looking.first : looking.first + fit]
        parts: list[RenderableType] = [
            one_line(f"What happened: {len(happened)}, newest first", "bold underline", width)
        ]
        table, filled = _events(part, width, shown.now_s), len(part)
    else:
        rows = _rows(shown.view)
        some = rows[looking.first : looking.first + fit]
        count = sum(isinstance(row, MemberView) for row in rows)
        parts = [
            one_line(f"{plural(len(shown.view.roles), 'role')}, {plural(count, 'member')}", "bold underline", width)
        ]
        table, filled = _members(some, width), len(some)
    if room < 2:
        return parts[:room]
    return [*parts, table, *blank(room - 2 - filled)]


def _rows(view: RolesView) -> list[RoleView | MemberView]:
    """Return roles and, below each, its members; those that are not wanted now are left out."""
    rows: list[RoleView | MemberView] = []
    for role in view.roles:
        rows += [role, *(member for member in role.members if member.state != "held" or member.starts)]
    return rows


def _members(rows: Sequence[RoleView | MemberView], width: int) -> Table:
    table = table_of(width)
    table.add_column("MEMBER", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("STATE", no_wrap=True, width=14)
    table.add_column("GEN", justify="right", no_wrap=True, width=4)
    table.add_column("IDLE", justify="right", no_wrap=True, width=5)
    table.add_column("RESTARTS", justify="right", no_wrap=True, width=8)
    if width >= 90:
        table.add_column("NODE", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=5)
    for row in rows:
        cells = _role(row) if isinstance(row, RoleView) else _member(row)
        if width < 90:
            del cells[5]
        table.add_row(*cells)
    return table


def _role(role: RoleView) -> list[Text]:
    ready = sum(member.ready for member in role.members)
    short = ready < role.wanted and not any(member.state == "done" for member in role.members)
    said = f"restart {role.restart}" + (f", {role.fewest} to {role.most}" if role.fewest != role.most else "")
    return [
        cell(role.name, "bold"),
        cell(f"{ready}/{role.wanted} ready", "bold yellow" if short else "bold"),
        cell(""),
        cell("" if role.idle is None else f"{role.idle:.0%}", "bold"),
        cell(str(sum(member.restarts for member in role.members)), "bold"),
        cell(""),
        cell(said, "dim"),
    ]


def _member(member: MemberView) -> list[Text]:
    state = f"{member.state} ready" if member.ready else member.state
    return [
        cell(f"  {member.name}"),
        cell(state, _STATES.get(member.state, "")),
        cell(str(member.generation) if member.generation else ""),
        cell("" if member.idle is None else f"{member.idle:.0%}"),
        cell(str(member.restarts) if member.restarts else ""),
        cell(", ".join(member.nodes)),
        cell(member.sentence or member.run, "" if member.sentence else "dim"),
    ]


def _happened(history: History) -> list[tuple[float, str, str]]:
    """Return moments and losses, the newest first: when, in words, and how long until the member was back."""
    lost: list[tuple[float, str, str]] = [
        (loss.at_s, f"{loss.member}: {loss.sentence}", _back(loss)) for loss in history.losses
    ]
    said = {text for _, text, _ in lost}
    told = [(each.at_s, each.text, "") for each in history.moments if not _is_said(each, said)]
    return sorted((*lost, *told[::-1]), key=lambda row: -row[0])  # of one moment, what was told last comes first


def _is_said(moment: Moment, losses: set[str]) -> bool:
    member, failed, why = moment.text.partition(" failed: ")
    return bool(failed) and f"{member}: {why}" in losses


def _back(loss: Loss) -> str:
    return "not back" if loss.back_s is None else length(max(loss.back_s - loss.at_s, 0.0))


def _events(rows: Sequence[tuple[float, str, str]], width: int, now_s: float) -> Table:
    table = table_of(width)
    table.add_column("AGO", no_wrap=True, width=10)
    table.add_column("BACK", justify="right", no_wrap=True, width=8)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for at_s, text, back in rows:
        table.add_row(cell(age(now_s - at_s)), cell(back, "red" if back else ""), cell(text))
    return table


def _foot(shown: RolesNow, looking: Looking, width: int) -> Text:
    keys = {
        "nodes": "q quit  i what happened  h keys  arrows, page up/down: scroll",
        "incidents": "q quit  i members  h keys  arrows, page up/down: scroll",
        "help": "q quit  h back",
    }[looking.pane]
    line = one_line(f"{keys}   {'live' if shown.view.is_led else 'not live'}", "reverse", width)
    line.pad_right(max(width - line.cell_len, 0))
    return line
