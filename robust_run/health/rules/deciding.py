"""From events to decisions, by the rules. Pure: the state is what was counted, and time is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.health.rules.types import Book, Counts, Evicted, HealthRule, RuleDecision, RuleLimits
from robust_run.health.sensors.types import Event

#: Nodes times kinds of alerts that are remembered; the oldest are forgotten first.
MOST_COUNTED = 100_000
_MOST_TIMES = 1000


def rule_of(book: Book, name: str) -> tuple[str, HealthRule] | None:
    """Return the rule for an event's name: that of its longest beginning, by dots. None where there is none."""
    while name:
        rule = book.rules.get(name)
        if rule is not None:
            return (name, rule) if rule.on else None
        name = name.rpartition(".")[0]
    return None


def decide(book: Book, counts: Counts, node: str, event: Event, now_s: float) -> tuple[Counts, RuleDecision | None]:
    """Return what follows from an event of a node; None where nothing does. Evictions are still to be held to the limits.

    `now_s` is the time of the caller's clock: events of several nodes carry clocks of their own.
    """
    found = rule_of(book, event.name) if event.kind == "alert" else None
    if found is None:
        return counts, None
    name, rule = found
    counts, times = _count(counts, (rule.counts_as or name, node), rule, now_s)
    said = f"{event.subject}: {event.detail}" if event.subject else event.detail
    where = f"on {node}, " if node else ""
    if times < rule.count:
        sentence = f"{where}{said} ({event.name}; tolerated: {times} of {rule.count} within {rule.within_s:g} s)"
        return counts, _decision(name, rule, node, event, sentence, tolerated=True)
    often = f"; {times} alerts within {rule.within_s:g} s" if rule.count > 1 else ""
    return counts, _decision(name, rule, node, event, f"{where}{said} ({event.name}{often})", tolerated=False)


def count_key(book: Book, node: str, event: Event) -> tuple[str, str] | None:
    """Return where an event of a node is counted; None: its rule counts nothing, or there is none."""
    found = rule_of(book, event.name) if event.kind == "alert" else None
    return None if found is None or found[1].count == 1 else (found[1].counts_as or found[0], node)


def _decision(name: str, rule: HealthRule, node: str, event: Event, sentence: str, *, tolerated: bool) -> RuleDecision:
    return RuleDecision(
        rung="report" if tolerated else rule.rung,
        rule=name,
        confidence=rule.confidence,
        node=node,
        event=event,
        sentence=sentence,
        tolerated=tolerated,
    )


def _count(counts: Counts, key: tuple[str, str], rule: HealthRule, now_s: float) -> tuple[Counts, int]:
    """Count one alert; return the counts and how many there are. A count that is reached begins anew."""
    if rule.count == 1:
        return counts, 1
    times = tuple(at_s for at_s in counts.get(key, ()) if now_s - at_s <= rule.within_s)
    if not times or now_s - times[-1] >= rule.apart_s:
        times = (*times, now_s)[-_MOST_TIMES:]
    changed = {other: kept for other, kept in counts.items() if other != key}
    while len(changed) >= MOST_COUNTED:
        changed.pop(next(iter(changed)))
    if len(times) < rule.count:
        changed[key] = times
    return changed, len(times)


def most_evictions(limits: RuleLimits, nodes: int) -> int:
    """Return how many of a job's nodes rules may evict within the window."""
    if limits.max_evict_share <= 0 or nodes <= 1:
        return 0
    return max(1, int(limits.max_evict_share * nodes + 1e-9))


def hold_back(
    limits: RuleLimits, decision: RuleDecision, nodes: int, evicted: Sequence[Evicted], now_s: float
) -> RuleDecision:
    """Return the decision, or a report in its place where the eviction would be one too many.

    `nodes`: how many the job had before any was evicted. `evicted`: what rules have evicted so far; a node that is among
    them already is not counted twice.
    """
    if decision.rung != "evict":
        return decision
    recent = {each.node: each.rule for each in evicted if now_s - each.at_s <= limits.evict_window_s}
    most = most_evictions(limits, nodes)
    if decision.node in recent or len(recent) < most:
        return decision
    same = sum(rule == decision.rule for rule in recent.values())
    reason = (
        f"rules have evicted {len(recent)} of {nodes} nodes within {limits.evict_window_s:g} s, and may evict {most}"
        f" (--max-evict-share {limits.max_evict_share:g})"
    )
    if same > 1:
        reason += f"; {same} of them for {decision.rule}: it may not be the nodes' fault"
    sentence = f"{decision.sentence}; not evicted: {reason}"
    return msgspec.structs.replace(decision, rung="report", held_back=reason, sentence=sentence)


def forget(counts: Counts, node: str) -> Counts:
    """Return the counts without those of a node that has gone or was mended."""
    return {key: times for key, times in counts.items() if key[1] != node}


def names(book: Book) -> Mapping[str, HealthRule]:
    """Return the rules in the order of a table for people."""
    return dict(sorted(book.rules.items()))
