"""What is no fault of a node because its peers see it, too: a file server that is gone is gone for all of them. Pure."""

from __future__ import annotations

from robust_run.health.rules.types import Book, RuleDecision
from robust_run.launcher.core.state import JobState

MOUNTS = "mount."
"""Rules about what nodes have in common."""


def seen_by_others(book: Book, state: JobState, decision: RuleDecision, now_s: float) -> str:
    """Return that half of the other nodes see the same, lately or still; empty: they do not, or it is a node's own.

    The same is a fault of the same place, of any kind: one node hangs where another has a stale handle. Or the same rule's, as
    long as it counts: all nodes were well again for a while, and this one is only the first to see it once more.
    """
    if not decision.rule.startswith(MOUNTS):
        return ""
    record, place = state.health, decision.event.subject
    others = {member.info.name for member in state.members.values() if member.present} - {decision.node}
    signs = [sign for sign in (*record.active.values(), *record.recent) if sign.event.subject == place]
    see = {sign.name for sign in signs if sign.event.name.startswith(MOUNTS)}
    if (rule := book.rules.get(decision.rule)) is not None:
        counted = {name: times[-1] for (kind, name), times in record.counts.items() if kind == decision.rule}
        see |= {name for name, at_s in counted.items() if now_s - at_s <= rule.within_s}
    see &= others
    if not see or 2 * len(see) < len(others):
        return ""
    return f"{len(see)} of {len(others)} other nodes see the same, so it is not the node's fault"
