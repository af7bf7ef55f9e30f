"""Text output of the views: one screen, the answer in the first line. Pure.

Everything that comes from nodes and programs is cleaned of control characters: it must not steer a terminal.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from robust_run.launcher.operator.views.advice import next_step
from robust_run.launcher.operator.views.status_types import AttemptView, IncidentView, JobView, NodesView, NodeView
from robust_run.terminal import plain

#: Attempts that a status names.
MOST_ATTEMPTS = 5
HOUR_S = 3600.0
#: Of a job that failed: characters of the verdict, and of why it was not restarted, in the first line.
FIRST_CHARACTERS, REASON_CHARACTERS = 90, 40


def status_lines(job: JobView) -> list[str]:
    """Return a job on one screen: what happens now, what to do about it, then its attempts, its nodes, its last incident."""
    lines = [headline(job), f"  {_identity(job)}"]
    if todo := next_step(job):
        lines.append(f"  next: {todo}")
    lines += [f"  {line}" for line in (*_training(job), *_attempts(job), *_nodes(job))]
    if job.last_incident is not None:
        lines.append(f"  last incident: {_incident(job, job.last_incident)}")
    if job.code:
        lines.append(f"  {job.code}; robust code log lists them")
    if job.nccl:
        lines.append(f"  {job.nccl}")
    if job.run_directory:
        lines.append(f"  logs and journal: {job.run_directory}")
    return [clean(line) for line in lines]


def _training(job: JobView) -> list[str]:
    """Return how much of the time was training, and how long steps take."""
    words = []
    if job.ettr is not None:
        words.append(f"{job.ettr:.1%} of the time since the start")
        if job.ettr_hour is not None and job.now_unix_s - job.started_unix_s > HOUR_S:
            words.append(f"{job.ettr_hour:.1%} of the last hour")
    if job.step_s is not None:
        words.append(f"{length(job.step_s)} a step")
    return [f"training: {', '.join(words)}"] if words else []


def _attempts(job: JobView) -> list[str]:
    """Return the newest attempts, newest first, where there was more than one."""
    if len(job.attempts) < 2:
        return []
    shown = job.attempts[::-1][:MOST_ATTEMPTS]
    lines = [f"attempt {each.number}: {attempt_words(each, job)}" for each in shown]
    older = job.attempt + 1 - len(shown)
    return [*lines, f"attempts: {plural(older, 'older one')}; robust events tells of them"] if older > 0 else lines


def attempt_words(each: AttemptView, job: JobView) -> str:
    """Return what an attempt was and what ended it."""
    facts = [plural(each.ranks, "rank")]
    if each.ended_unix_s is None:
        facts.append(f"for {age(job.now_unix_s - each.began_unix_s)}")
    else:
        facts.append(f"lasted {age(each.ended_unix_s - each.began_unix_s)}")
    if each.startup_s is not None:
        facts.append(f"first step after {length(each.startup_s)}")
    if each.steps is not None:
        facts.append(plural(each.steps, "step"))
    why = _once(each.why, job, "as the last incident") if job.outcome == "failed" else each.why
    return f"{', '.join(facts)}{': ' + why if why else ''}"


def _nodes(job: JobView) -> list[str]:
    lines = []
    for each in job.evicted:
        ago = f", {age(job.now_unix_s - each.at_unix_s)} ago" if each.at_unix_s else ""
        lines.append(f"evicted: {each.name}: {each.reason or 'no reason given'} (by {each.by}{ago})")
    if job.nodes_evicted > len(job.evicted):
        lines.append(f"evicted: {job.nodes_evicted - len(job.evicted)} more; robust nodes lists them")
    if job.lost:
        more = f" and {job.nodes_lost - len(job.lost)} more" if job.nodes_lost > len(job.lost) else ""
        lines.append(f"lost: {', '.join(job.lost)}{more}")
    for finding in job.findings:
        ago = age(job.now_unix_s - finding.at_unix_s)
        lines.append(f"health: {finding.node}: {finding.text} ({finding.name}, {ago} ago)")
    if job.findings_count > len(job.findings):
        lines.append(f"health: {job.findings_count - len(job.findings)} more")
    lines += [f"blind: {each.node}: {each.text}" for each in job.blind]
    if job.blind_count > len(job.blind):
        lines.append(f"blind: {plural(job.blind_count - len(job.blind), 'more node')}")
    return lines


def _incident(job: JobView, last: IncidentView) -> str:
    """Return the last incident; its sentence is left out where the first line has the whole of it."""
    reason = _once(last.reason, job)
    why = f" ({reason})" if reason else ""
    is_said = job.outcome == "failed" and len(last.sentence) <= FIRST_CHARACTERS
    sentence = "" if is_said else f": {last.sentence}"
    return f"{age(job.now_unix_s - last.at_unix_s)} ago, attempt {last.attempt}{sentence}; {last.action}{why}"


def _once(said: str, job: JobView, instead: str = "the same") -> str:
    """Return what is said of a job without repeating its last verdict, which stands elsewhere."""
    last = job.last_incident
    known = next((each.why for each in job.attempts if last is not None and each.number == last.attempt), "")
    for verdict in filter(None, (last.sentence if last is not None else "", known)):
        said = said.replace(verdict, instead)
    return said


def _cut(said: str, most: int) -> str:
    return said if len(said) <= most else f"{said[: most - 1]}…"


def tone(job: JobView) -> str:
    """Return how the job is in a word, for colours: good, busy, bad, over."""
    if job.outcome:
        return {"done": "good", "failed": "bad"}.get(job.outcome, "over")
    if not job.alive:
        return "bad"
    return "bad" if is_hung(job) else {"running": "good", "suspecting": "bad"}.get(job.phase, "busy")


def is_hung(job: JobView) -> bool:
    """Whether ranks still wait as they did when that was reported, and nothing was done about it."""
    return job.phase == "running" and job.stands_still_s is not None


def headline(job: JobView, *, brief: bool = False) -> str:
    """Return what an operator woken at night must know, as one line. `brief`: without the last incident of a job that lives."""
    if job.outcome:
        why = f": {job.reason}" if job.reason else ""
        if job.outcome == "failed" and job.last_incident is not None:
            reason = _cut(_once(job.reason, job), REASON_CHARACTERS)
            why = f": {_cut(job.last_incident.sentence, FIRST_CHARACTERS)}" + (
                f"; not restarted: {reason}" if reason else ""
            )
        when = f", {age(job.now_unix_s - job.ended_unix_s)} ago" if job.ended_unix_s is not None else ""
        tries = plural(job.attempt + 1, "attempt") if job.attempt >= 0 else "no attempt"
        return clean(f"{job.outcome} with exit code {job.exit_code} after {tries}{when}{why}")
    if not job.alive:
        mend = f"; robust-run --resume {shlex.quote(job.run_directory)} continues it" if job.resumable else ""
        return clean(f"{job.note or 'no controller answers'}; last known: {_doing(job)}{mend}")
    past = _past(msgspec.structs.replace(job, last_incident=None) if brief else job)
    return clean(f"{_doing(job)}{_others(job)}{past}")


def _doing(job: JobView) -> str:
    here = job.nodes_active + job.nodes_standby
    work = f"attempt {job.attempt} on {plural(job.nodes_active, 'node')} ({plural(job.world_size, 'rank')})"
    if job.phase == "gathering":
        after = f" after attempt {job.attempt}" if job.attempt >= 0 else ""
        return f"waiting for nodes{after}: {here} of {job.nodes_needed} needed are here"
    return {
        "new": "starting",
        "opening": f"starting: {work}",
        "running": f"HUNG for {age(job.stands_still_s or 0.0)}: {work}"
        if is_hung(job)
        else f"running: {work}{_step(job)}",
        "suspecting": f"running: {work}, but a rank lost its connection and the reason is awaited",
        "diagnosing": f"checking the nodes of attempt {job.attempt}",
        "replaying": "replaying a failure on groups of nodes",
        "ending": f"ending: {work}",
        "stopping": f"stopping: {work}",
        "over": "over",
    }[job.phase]


def _step(job: JobView) -> str:
    if job.step:
        return f", step {job.step}"
    awaits = job.attempts and job.attempts[-1].startup_s is None and any(each.startup_s for each in job.attempts)
    return ", no step yet" if awaits else ""


def _others(job: JobView) -> str:
    counted = ((job.nodes_evicted, "evicted"), (job.nodes_lost, "lost"))
    parts = [f"{count} {word}" for count, word in counted if count]
    if job.nodes_standby and job.phase != "gathering":
        parts.insert(0, plural(job.nodes_standby, "standby"))
    return "".join(f", {part}" for part in parts)


def _past(job: JobView) -> str:
    up = f"; up {age(job.now_unix_s - job.started_unix_s)}"
    times = f"; restarted {plural(job.restarts, 'time')}" if job.restarts else ""
    last = job.last_incident
    if last is None:
        return times or up
    ago = age(job.now_unix_s - last.at_unix_s)
    return f"{times or '; not restarted yet'}, last: {last.sentence} ({ago} ago)"


def _identity(job: JobView) -> str:
    where = (
        f"controller {job.host}"
        + (f", pid {job.pid}" if job.pid else "")
        + (f", term {job.term}" if job.term > 1 else "")
    )
    size = (
        f"{job.nodes_needed}" if job.nodes_needed == job.nodes_wanted else f"{job.nodes_needed} to {job.nodes_wanted}"
    )
    up = f", started {age(job.now_unix_s - job.started_unix_s)} ago"
    return f"job {job.run_id} ({job.script}), needs {size} node{'s' if size != '1' else ''}{up}; {where}"


def node_lines(view: NodesView, most: int | None = None) -> list[str]:
    """Return an aligned table with a line per node; columns in which no node has anything are left out."""
    nodes = view.nodes if most is None else view.nodes[:most]
    columns = [(title, [cell(node) for node in nodes]) for title, cell in _COLUMNS]
    shown = [(title, cells) for title, cells in columns if title in _ALWAYS or any(cells)]
    rows = [[title for title, _ in shown], *([cells[row] for _, cells in shown] for row in range(len(nodes)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(shown))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(nodes) < len(view.nodes):
        lines.append(f"... and {len(view.nodes) - len(nodes)} more; robust nodes lists them")
    return lines


def plural(count: int, word: str) -> str:
    """Return `1 node`, `4 nodes`, `2 standbys`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def age(seconds: float) -> str:
    """Return `40 s`, `12 min`, `3 h 5 min` or `2 d 4 h`; clocks that disagree make no age negative."""
    left = max(round(seconds), 0)
    if left < 60:
        return f"{left} s"
    if left < 3600:
        return f"{left // 60} min"
    if left < 86400:
        return f"{left // 3600} h {left % 3600 // 60} min"
    return f"{left // 86400} d {left % 86400 // 3600} h"


def length(seconds: float) -> str:
    """Return a short duration: `3.2 ms`, `0.51 s`, `12.4 s`, or as `age` does."""
    if seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else age(seconds)


def clean(text: str) -> str:
    """Return a line without anything that a terminal would obey."""
    return plain(text)


def _silence(node: NodeView) -> str:
    return "" if node.silent_s is None else f"{node.silent_s:.1f} s"


def _since(node: NodeView) -> str:
    return "" if node.since_s is None else age(node.since_s)


_COLUMNS = (
    ("NODE", lambda node: clean(node.name)),
    ("STANDING", lambda node: node.standing),
    ("RANKS", lambda node: node.ranks),
    ("SINCE", _since),
    ("SILENT", _silence),
    ("ADDRESS", lambda node: clean(node.address)),
    ("PID", lambda node: str(node.pid) if node.pid else ""),
    ("VERSION", lambda node: clean(node.version)),
    ("REASON", lambda node: clean(node.reason)),
)

_ALWAYS: Sequence[str] = ("NODE", "STANDING", "RANKS")
