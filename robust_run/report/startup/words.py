"""What is said of a start in a line or two, on the terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.report.startup.phases import seconds_of
from robust_run.report.startup.types import PHASES, Advice, AttemptStartup, FetchRow, Phase, PhaseSummary

SHORT: dict[Phase, str] = {
    "queue": "queue",
    "script": "script",
    "agent": "launcher",
    "image": "image",
    "snapshot": "env",
    "meet": "other nodes",
    "spawn": "spawn",
    "imports": "imports",
    "init": "init",
    "load": "load",
    "program": "program",
    "first_step": "first step",
}
"""What phases are called where there is little room."""
ALWAYS: frozenset[Phase] = frozenset({"image", "snapshot", "imports", "init", "load"})
"""Said however short they are, where they were at all."""
BEFORE: frozenset[Phase] = frozenset({"queue", "script"})
"""Before the launcher was started: told, but not counted."""
#: Others are said from this part of the whole on.
WORTH_SAYING = 0.05
MOST_NAMED = 40


def seconds(value: float) -> str:
    """Return `0.3`, `12.4` or `431`: as precise as anybody needs."""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def plain(text: str) -> str:
    """Return a host's name without what a terminal would obey, and not longer than a name should be."""
    return "".join(each if each.isprintable() else "?" for each in text)[:MOST_NAMED]


def size(size_bytes: float) -> str:
    """Return `312 MB`, `1.6 GB` or, of very little, `12 kB`."""
    if size_bytes < 1e6:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def fetch_words(row: FetchRow) -> str:
    """Return `1.6 GB in 5.2 s (310 MB/s), 88 % from other nodes`: what was fetched beside a start."""
    fetch = row.fetch
    taken_s = fetch.ended_s - fetch.began_s
    rate = f" ({size(fetch.size_bytes / taken_s)}/s)" if taken_s > 0.0 and fetch.size_bytes else ""
    share = 100 * fetch.from_nodes_bytes / fetch.size_bytes if fetch.size_bytes else 0.0
    nodes = f", {share:.0f} % from other nodes" if fetch.from_nodes_bytes else ""
    rest = "" if fetch.is_whole else ", and more to come"
    return f"{size(fetch.size_bytes)} in {seconds(taken_s)} s{rate}{nodes}{rest}"


def sentence(attempt: AttemptStartup) -> str:
    """Return `first step after 12.4 s: imports 1.1, init 0.3, load 9.8 (slowest: node 7)`; empty before a first step.

    The phases are those of the rank that had most to do: what it spent, all others waited for.
    """
    critical = attempt.critical
    if critical is None or not attempt.stepped_ranks:
        return ""
    which = f" of attempt {attempt.attempt}" if attempt.attempt else ""
    spent = seconds_of(critical)
    parts = []
    for phase in PHASES:
        taken_s = spent.get(phase)
        if taken_s is None or phase in BEFORE:
            continue
        if phase in ALWAYS or taken_s >= WORTH_SAYING * attempt.total_s:
            parts.append(f"{SHORT[phase]} {seconds(taken_s)}{_slowest(attempt, phase)}")
    before = [f"{MEANT_BEFORE[phase]} {seconds(spent[phase])} s" for phase in PHASES if phase in BEFORE & spent.keys()]
    missing = attempt.seen_ranks - attempt.stepped_ranks
    ends = [*before, *([f"{missing} of {attempt.seen_ranks} ranks have made none"] if missing else [])]
    said = f"first step{which} after {seconds(attempt.total_s)} s: {', '.join(parts)}"
    return f"{said}; {'; '.join(ends)}" if ends else said


MEANT_BEFORE: dict[Phase, str] = {"queue": "before that, in the queue", "script": "in the batch script"}


def _slowest(attempt: AttemptStartup, phase: Phase) -> str:
    summary = next((each for each in attempt.phases if each.phase == phase), None)
    if summary is None or not summary.stragglers:
        return ""
    return f" (slowest: {who(attempt, summary)})"


def who(attempt: AttemptStartup, summary: PhaseSummary) -> str:
    """Return where a phase took longest: `node-7`, or `rank 3`, or `rank 12 on node-7`."""
    first = summary.stragglers[0] if summary.stragglers else None
    node, rank = (first.node, first.rank) if first is not None else (summary.node, summary.rank)
    if rank < 0:
        return plain(node)
    return f"rank {rank} on {plain(node)}" if attempt.nodes > 1 else f"rank {rank}"


def advice_line(advice: Sequence[Advice], total_s: float) -> str:
    """Return what to switch on, if that is worth a line; empty if not."""
    if not advice or advice[0].saves_s < max(1.0, 0.1 * total_s):
        return ""
    best = advice[0]
    return f"to start faster (about {seconds(best.saves_s)} s): {best.what}; robust report --startup shows where the time went"
