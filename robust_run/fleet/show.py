"""What a fleet adds up to as people read it on a terminal: the answer in the first lines, 100 columns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from robust_run.fleet.results import Fleet, Lemon, LemonSearch, Part, Rate, StartGroup
from robust_run.report.pages.words import ago, date_time, lasted
from robust_run.terminal import plain

MOST_NODES, MOST_CODE, MOST_LEMONS = 12, 8, 8
PHASE_WORDS = {
    "detect": "until a fault is known",
    "end": "ending attempts",
    "check": "checking nodes",
    "wait": "waiting for nodes",
    "launch": "starting workers",
    "load": "process groups, loading",
    "redo": "training again",
}
_TOO_LITTLE = "less than a node-day"


def lines_of(fleet: Fleet) -> Iterator[str]:
    """Yield what `robust fleet` prints."""
    yield from _answer(fleet)
    if not fleet.runs:
        return
    if fleet.shows_rates:
        yield from ("", "per 1,000 node-days")
        yield from (f"  {name:<22}{_rate(each)}" for name, each in fleet.rates.items())
    yield from _incidents("by kind", fleet.by_kind, fleet.kind_rates, fleet)
    yield from _incidents("by component", fleet.by_component, fleet.component_rates, fleet)
    if fleet.by_phase or fleet.other.seconds:
        yield from ("", f"{'lost by phase':<30}{'time':>14}{'node-hours':>14}{'of all':>10}")
        for words, part in phases_of(fleet).items():
            yield f"  {words:<28}{lasted(part.seconds):>14}{hours(part.node_hours):>14}{_share(part.node_hours, fleet):>10}"
    if fleet.by_action:
        done = ", ".join(f"{name} {part.incidents:,}" for name, part in fleet.by_action.items())
        yield from ("", f"what was done: {done}")
    yield from _nodes(fleet)
    if fleet.starts:
        head = f"{'starts, by nodes':<26}{'starts':>8}{'workers run':>15}{'first step':>15}{'whole':>15}{'95 % within':>15}"
        yield from ("", head, *map(_start, fleet.starts))
    if fleet.code:
        yield from ("", "code that failed")
        for each in fleet.code[:MOST_CODE]:
            back = f", rolled back in {each.rolled_back}" if each.rolled_back else ""
            yield f"  {_cut(f'{each.name} {each.version}', 56):<56}  {each.failed} failures in {each.runs} runs{back}"


def _answer(fleet: Fleet) -> Iterator[str]:
    states = ", ".join(f"{count:,} {state}" for state, count in fleet.by_state.items())
    since = f" since {date_time(fleet.since_unix_s)}" if fleet.since_unix_s is not None else ""
    yield f"fleet      {counted(fleet.runs, 'run')}{since}{': ' if states else ''}{states}"
    if fleet.runs:
        yield f"ETTR       {ettr_line(fleet)}"
        yield f"time       {time_line(fleet)}"
        yield f"incidents  {incidents_line(fleet)}"
        first, *rest = lemon_lines(fleet.lemons, fleet.at_unix_s)
        yield f"lemons     {first}"
        yield from (f"           {each}" for each in rest)
    if fleet.skipped:
        yield f"left out   {skipped_line(fleet)}"
    notes = notes_of(fleet)
    if notes:
        yield f"note       {'; '.join(notes)}"


def summary(fleet: Fleet) -> str:
    """Return the whole in a line."""
    ettr = f", ETTR {percent(fleet.ettr)}" if fleet.ettr is not None else ""
    lemons = f", {counted(len(fleet.lemons.lemons), 'lemon node')}" if fleet.lemons.lemons else ""
    left = f"; left out: {skipped_line(fleet)}" if fleet.skipped else ""
    return f"{counted(fleet.runs, 'run')}{ettr}, {counted(fleet.incidents, 'incident')}{lemons}{left}"


def phases_of(fleet: Fleet) -> dict[str, Part]:
    """Return what was lost, by phase in words, with what no incident cost."""
    found = {PHASE_WORDS[name]: part for name, part in fleet.by_phase.items()}
    return found | ({"first starts, and ends": fleet.other} if fleet.other.seconds else {})


def ettr_line(fleet: Fleet) -> str:
    """Return how effective all runs were."""
    if fleet.ettr is None or fleet.ettr_by_node_hours is None:
        return "not known: no run says how long it trained"
    known = f", of {fleet.ettr_runs:,} of {fleet.runs:,} runs" if fleet.ettr_runs < fleet.runs else ""
    return f"{percent(fleet.ettr)} of the time, {percent(fleet.ettr_by_node_hours)} of the node time{known}"


def time_line(fleet: Fleet) -> str:
    """Return how much time there was."""
    gpus = f", {hours(fleet.gpu_hours)} GPU-hours" if fleet.gpu_hours else ""
    nodes = f"{hours(fleet.node_hours)} node-hours{gpus}, on {counted(fleet.nodes_seen, 'node')}"
    return f"{lasted(fleet.hours * 3600.0)} of runs, {nodes}"


def incidents_line(fleet: Fleet) -> str:
    """Return how many there were, and how often."""
    found = fleet.rates.get("interruptions")
    if found is None:
        return f"{fleet.incidents:,}"
    often = (
        f"{rate_words(found)} per 1,000 node-days" if fleet.shows_rates else f"too little time for rates: {_TOO_LITTLE}"
    )
    return f"{fleet.incidents:,}; {found.count:,} stopped training, {often}"


def rate_words(rate: Rate) -> str:
    """Return a rate with its interval."""
    return f"{figure(rate.per_1000)} ({figure(rate.low)} to {figure(rate.high)})"


def lemon_lines(search: LemonSearch, now_s: float) -> Iterator[str]:
    """Yield the lemons, or why there are none."""
    looked = f"{counted(search.failures, 'failure')} of {counted(search.nodes, 'node')} looked at"
    if search.lemons:
        yield from (_lemon(each, now_s) for each in search.lemons[:MOST_LEMONS])
        more = len(search.lemons) - MOST_LEMONS
        if more > 0:
            yield f"and {more:,} more; --json has all"
    elif search.needed is None:
        yield f"cannot be told: {looked}, and there is none to compare with"
    elif search.is_too_few:
        yield f"too few failures to tell: {looked}; a node would be named from {search.needed} on"
    else:
        yield f"none: {looked}; a node would be named from {search.needed} on"


def _lemon(lemon: Lemon, now_s: float) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in lemon.kinds.items())
    often = f"{lemon.failures} failures in {counted(lemon.runs, 'run')} where {lemon.expected:.1f} were due"
    return _cut(f"{_cut(lemon.node, 30)}: {often} ({kinds}), last {ago(max(now_s - lemon.last_s, 0.0))}", 88)


def skipped_line(fleet: Fleet) -> str:
    """Return what is not in the figures, by reason."""
    count = sum(each.count for each in fleet.skipped)
    why = ", ".join(f"{each.count:,} {each.why}" for each in fleet.skipped)
    return f"{count:,} director{'y' if count == 1 else 'ies'}: {why}"


def notes_of(fleet: Fleet) -> list[str]:
    """Return what to know of how it was counted."""
    found = []
    if fleet.twice:
        found.append(f"{counted(fleet.twice, 'run')} found twice, counted once")
    if fleet.cut:
        found.append(f"{counted(fleet.cut, 'run')} began before: a share of their time counts")
    if fleet.with_gaps:
        runs, gap = counted(fleet.with_gaps, "run"), lasted(3600.0 * fleet.gap_hours)
        found.append(f"nothing could be written of the last {gap} of {runs} (disk full?): they count nowhere")
    return found


def _incidents(title: str, parts: Mapping[str, Part], rates: Mapping[str, Rate], fleet: Fleet) -> Iterator[str]:
    if not parts:
        return
    heads = f"{'faults':>8}{'per 1,000 node-days':>30}" if fleet.shows_rates else ""
    yield from ("", f"{title:<16}{'incidents':>10}{heads}{'lost node-hours':>18}{'of all':>10}")
    for name, part in parts.items():
        often = ""
        if fleet.shows_rates and (rate := rates.get(name)):
            often = f"{rate.count:>8,} {rate_words(rate):>29}"
        elif fleet.shows_rates:
            often = f"{'?':>8}{'?':>30}"
        share = _share(part.node_hours, fleet)
        yield f"  {name:<14}{part.incidents:>10,}{often}{hours(part.node_hours):>18}{share:>10}"


def _rate(rate: Rate) -> str:
    return f"{rate.count:>8,} in {rate.node_days:,.0f} node-days{rate_words(rate):>36}"


def _nodes(fleet: Fleet) -> Iterator[str]:
    named = fleet.nodes[:MOST_NODES]
    if not named:
        return
    yield from ("", f"{'by node':<32}{'own failures':>14}{'incidents':>11}{'evicted':>9}{'node-days':>11}  kinds")
    for each in named:
        kinds = ", ".join(f"{kind} {count}" for kind, count in each.kinds.items())
        days = figure(each.node_days) if each.node_days else "?"
        line = (
            f"  {_cut(each.node, 30):<30}{each.failures:>14,}{each.incidents:>11,}{each.evicted:>9,}{days:>11}  {kinds}"
        )
        yield _cut(line, 100)
    more = len(fleet.nodes) - len(named)
    if more > 0:
        yield f"  and {counted(more, 'more node')} with incidents; --json has all"


def _start(group: StartGroup) -> str:
    size = f"{group.least_nodes:,}" + (f"-{group.most_nodes:,}" if group.most_nodes > group.least_nodes else "")
    figures = (group.ready_s, group.first_step_s, group.whole_s, group.whole_p95_s)
    cells = "".join(f"{'?' if each is None else lasted(each):>15}" for each in figures)
    return f"  {size:<14}{group.began:<10}{group.starts:>8,}{cells}"


def _share(node_hours: float, fleet: Fleet) -> str:
    return f"{100 * node_hours / fleet.node_hours:.2f} %" if fleet.node_hours else "?"


def counted(count: int, noun: str) -> str:
    """Return `1 run`, or `1,200 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def figure(value: float) -> str:
    """Return a rate with the digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 0.01 else f"{value:.3g}"


def hours(value: float) -> str:
    """Return hours of nodes or GPUs: no digits beyond half a minute."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value else "0"


def percent(share: float) -> str:
    """Return `97.31 %`; never rounds up to 100 %."""
    return f"{int(share * 10000) / 100:.2f} %"


def _cut(text: str, longest: int) -> str:
    shown = plain(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1].rstrip()}…"
