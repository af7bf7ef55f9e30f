"""The screen of `robust top`: from what a controller says to lines of a terminal. Pure.

Everything that came from a job or a node is cleaned of what a terminal, or rich's markup, would obey.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from robust_run.launcher.operator.top.keys import Looking
from robust_run.launcher.operator.top.lines import blank, cell, in_lines, one_line, table_of
from robust_run.launcher.operator.views import show
from robust_run.launcher.operator.views.advice import next_step
from robust_run.launcher.operator.views.live import LiveIncident, LiveView
from robust_run.launcher.operator.views.status_types import LiveNode

COLOURS = {"good": "bold green", "busy": "bold yellow", "bad": "bold red", "over": "bold blue"}
_STANDINGS = {"active": "green", "standby": "cyan", "lost": "red", "evicted": "yellow", "left": "dim"}
#: Lines of findings, and of attempts, that the upper part shows at most.
MOST_FINDINGS, MOST_ATTEMPTS = 4, 3

HELP = (
    "up, down, j, k      one line",
    "page up/down, space  one page",
    "home, end, g, G     the first, the last",
    "i                   incidents and back",
    "n                   nodes",
    "h, ?                this, and back",
    "q, escape           go",
)


def screen(view: LiveView, looking: Looking, width: int, height: int, trouble: str = "") -> Group:
    """Return a screen of exactly so many lines. `trouble`: why what is shown is old."""
    upper = head(view, width, trouble)
    upper = upper[: max(height - 4, 1)]
    room = max(height - len(upper) - 1, 0)
    lower: list[RenderableType] = []
    if room:
        lower = _pane(view, looking, width, room)
    return Group(*upper, *lower, _foot(view, looking, width))


def plain(view: LiveView, width: int, rows: int = 40) -> Group:
    """Return all there is to say once, for a pipe: no colours, no keys."""
    parts: list[RenderableType] = [*head(view, width, most=9), Text("")]
    parts.append(nodes_table(view.nodes[:rows], width))
    if view.nodes_total > rows:
        parts.append(Text(f"... and {view.nodes_total - rows} more nodes; robust nodes lists them"))
    if view.incidents:
        parts += [Text(""), incidents_table(view.incidents[:10], width, view.job.now_unix_s)]
        if view.incidents_total > 10:
            parts.append(Text(f"... and {view.incidents_total - 10} more; robust incident --all lists them"))
    return Group(*parts)


def rows_of(view: LiveView, width: int, height: int, trouble: str = "") -> int:
    """Return how many rows of a table fit below the upper part."""
    return max(height - min(len(head(view, width, trouble)), max(height - 4, 1)) - 3, 1)


# --- the upper part


def head(view: LiveView, width: int, trouble: str = "", most: int = 2) -> list[Text]:
    """Return what happens now, what to do about it, how much of the time was training, and what is odd.

    What is too long for a line takes `most` at most.
    """
    job = view.job
    lines = in_lines(show.headline(job, brief=True), COLOURS[show.tone(job)], width, most)
    if trouble:
        lines += in_lines(f"! {trouble}", "bold red", width, most)
    if todo := next_step(job):
        lines += in_lines(f"next: {todo}", "bold yellow", width, most)
    lines += in_lines(_numbers(view), "", width, most)
    shown = view.findings[:MOST_FINDINGS]
    for finding in shown:
        lines += in_lines(f"! {finding}", "yellow", width, most)
    if len(view.findings) > len(shown):
        lines += in_lines(f"! {len(view.findings) - len(shown)} more", "yellow", width, most)
    for each in job.attempts[-MOST_ATTEMPTS:] if len(job.attempts) > 1 else ():
        lines += in_lines(f"attempt {each.number}: {show.attempt_words(each, job)}", "dim", width, most - 1)
    return lines


def _numbers(view: LiveView) -> str:
    job = view.job
    words = [f"job {job.run_id} ({job.script})"]
    if job.step_s:
        words.append(f"{show.length(job.step_s)} a step ({1 / job.step_s:.3g}/s)")
    if job.ettr is not None:
        older = job.now_unix_s - job.started_unix_s > show.HOUR_S
        hour = f" ({job.ettr_hour:.1%} in the last hour)" if job.ettr_hour is not None and older else ""
        words.append(f"ETTR {job.ettr:.1%}{hour}")
    words.append(f"{show.plural(view.incidents_total, 'incident')}")
    return ", ".join(words)


# --- the lower part


def _pane(view: LiveView, looking: Looking, width: int, room: int) -> list[RenderableType]:
    """Return the lower part: a heading and a table, so many lines in all."""
    if looking.pane == "help":
        lines = [Text("Keys", style="bold"), *(Text(f"  {line}") for line in HELP)][:room]
        return [*lines, *blank(room - len(lines))]
    if looking.pane == "incidents":
        rows: Sequence[LiveIncident] = view.incidents[looking.first : looking.first + max(room - 2, 0)]
        parts = [_heading(f"Incidents: {view.incidents_total}, newest first", width)]
        table = incidents_table(rows, width, view.job.now_unix_s)
        filled = len(rows)
    else:
        shown = view.nodes[: max(room - 2, 0)]
        odd = f", {view.nodes_odd} of them odd" if view.nodes_odd else ""
        last = view.nodes_first + len(shown)
        place = f", {view.nodes_first + 1} to {last}" if len(shown) < view.nodes_total else ""
        parts = [_heading(f"Nodes: {view.nodes_total}{odd}{place}", width)]
        table = nodes_table(shown, width)
        filled = len(shown)
    if room < 2:
        return list(parts[:room])
    return [*parts, table, *blank(room - 2 - filled)]


def nodes_table(nodes: Sequence[LiveNode], width: int) -> Table:
    """Return nodes as a table, a line each."""
    table = table_of(width)
    table.add_column("NODE", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("STANDING", no_wrap=True, width=8)
    table.add_column("RANKS", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("STEP", justify="right", no_wrap=True, width=8)
    table.add_column("WORK", justify="right", no_wrap=True, width=8)
    if width >= 70:
        table.add_column("SILENT", justify="right", no_wrap=True, width=7)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=5)
    for node in nodes:
        cells = [
            cell(node.name, "bold" if node.odd else ""),
            cell(node.standing, _STANDINGS.get(node.standing, "")),
            cell(node.ranks),
            cell("" if node.step is None else str(node.step)),
            cell("" if node.own_s is None else show.length(node.own_s)),
        ]
        if width >= 70:
            cells.append(cell("" if node.silent_s is None else f"{node.silent_s:.1f} s"))
        slow = f" (rank {node.rank})" if node.slow is not None and "usual work" in node.odd else ""
        cells.append(cell(f"{node.odd}{slow}", "yellow"))
        table.add_row(*cells)
    return table


def incidents_table(incidents: Sequence[LiveIncident], width: int, now_unix_s: float) -> Table:
    """Return incidents as a table, a line each."""
    table = table_of(width)
    table.add_column("#", justify="right", no_wrap=True, width=4)
    table.add_column("AGO", no_wrap=True, width=10)
    table.add_column("KIND", no_wrap=True, width=10)
    table.add_column("ACTION", no_wrap=True, width=8)
    table.add_column("LOST", justify="right", no_wrap=True, width=8)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for each in incidents:
        lost_s = None if each.resumed_unix_s is None else each.resumed_unix_s - each.onset_unix_s
        table.add_row(
            cell(str(each.number)),
            cell(show.age(now_unix_s - each.detected_unix_s)),
            cell(each.kind, "red"),
            cell(each.action),
            cell("" if lost_s is None else show.length(max(lost_s, 0.0))),
            cell(each.sentence),
        )
    return table


def _foot(view: LiveView, looking: Looking, width: int) -> Text:
    keys = {
        "nodes": "q quit  i incidents  h keys  arrows, page up/down: scroll",
        "incidents": "q quit  i nodes  h keys  arrows, page up/down: scroll",
        "help": "q quit  h back",
    }[looking.pane]
    line = one_line(f"{keys}   {'live' if view.job.alive else 'not live'}", "reverse", width)
    line.pad_right(max(width - line.cell_len, 0))
    return line


def _heading(text: str, width: int) -> Text:
    return one_line(text, "bold underline", width)
