"""Nodes that were at fault in recent jobs. Pure.

A past is no verdict. Nodes are repaired, and a name may be another machine by now; what looks like one node's fault may have been
its rank's data, or its neighbour's. So what is remembered fades (by half in a week), counts only where one node was named
(`fleet.lemons.own_failures`: an incident that names several is nobody's own), and from two failures on. Nothing is done by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from robust_run.fleet.lemons import own_failures
from robust_run.fleet.rates import DAY_S
from robust_run.fleet.runs import once
from robust_run.fleet.words import RunFacts

HALF_LIFE_S = 7 * DAY_S
FEWEST = 2
LEAST = 1.0
"""Weight of what is told: two failures of this week, or one of today and two of last week."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one node."""

    node: str
    failures: int
    weight: float
    """The same, faded."""
    last_s: float
    kind: str
    """Of the newest."""


def remembered(runs: Iterable[RunFacts], nodes: Collection[str], now_s: float) -> tuple[Remembered, ...]:
    """Return those of these nodes that failed again and again a short time ago, the worst first."""
    known = [run for run in once(runs) if run.until_s <= now_s + DAY_S]
    found = []
    for node, failures in own_failures(known).items():
        past = [each for each in failures if each.at_s <= now_s]
        weight = sum(0.5 ** ((now_s - each.at_s) / HALF_LIFE_S) for each in past)
        if node in nodes and len(past) >= FEWEST and weight >= LEAST:
            last = past[-1]
            found.append(Remembered(node=node, failures=len(past), weight=weight, last_s=last.at_s, kind=last.kind))
    return tuple(sorted(found, key=lambda each: (-each.weight, each.node)))
