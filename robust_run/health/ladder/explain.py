"""Decisions of the ladder in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from robust_run.health.ladder.rules import RULES
from robust_run.health.ladder.types import Decision, State

TITLES = {
    "diagnose": "check the nodes",
    "evict": "evict",
    "reattempt": "try again as it is",
    "rollback": "put earlier code back",
    "replay": "replay on groups of nodes",
    "stop": "stop",
    "settled": "over",
}


def explain(decisions: Iterable[Decision]) -> list[str]:
    """Return the story of decisions: each with what was done, why, and the rule."""
    lines = []
    for each in decisions:
        what = TITLES[each.rung]
        if each.nodes:
            what += f" {', '.join(each.nodes)}"
        if each.version:
            what += f": {each.version}"
        lines.append(f"{each.number}. {what}: {each.sentence} [{each.rule}: {RULES[each.rule]}]")
        if each.over_evicted:
            lines.append(f"   {len(each.over_evicted)} of them only because it is not known which one is at fault")
    return lines


def everything_known(state: State) -> str:
    """Return all that was tried and found in an episode, as one sentence."""
    tried = ", ".join(TITLES[rung] for rung in dict.fromkeys(state.rungs)) or "nothing"
    return f"tried: {tried}; known: {'; '.join(state.known) or 'nothing'}"
