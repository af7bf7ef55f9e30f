"""How many nodes of a fleet fail on a day, for `--standby auto`. Pure.

What large clusters have shown counts as 2,500 node-days of one's own (the mean of a Gamma distribution with shape 3), so that one
failure more changes the rate by a third at most, and a fleet that has run for 2,500 node-days counts as much as they do. With
less than a tenth of that the usual rate stays.

What counts: a node that was lost or sent away, once a day, of the last 90 days, and three times in all: one that fails again
and again is a node to be repaired (`robust fleet` names it), and no reason to keep more standbys for all. What looks the same
and is harmless: a node that comes and goes all day; a run of long ago, on machines that were replaced since; a run from a clock
that is ahead. Whatever the folder holds, the rate is 2 % a day at most: three times the worst that was published (6.5 per 1,000
node-days, Meta's RSC-1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from robust_run.fleet.rates import DAY_S, node_seconds
from robust_run.fleet.runs import once, since
from robust_run.fleet.words import RunFacts

WINDOW_S = 90 * DAY_S
PRIOR_NODE_DAYS = 2500.0
LEAST_NODE_DAYS = PRIOR_NODE_DAYS / 10.0
MOST = 0.02
AHEAD_S = DAY_S
MOST_OF_ONE = 3
"""Failures of one node that count."""


class DailyRate(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes fail on a day."""

    rate: float
    """Share of all nodes."""
    failed: int
    node_days: float
    runs: int
    """That were seen."""

    @property
    def is_enough(self) -> bool:
        """Whether enough was seen for it to count."""
        return self.node_days >= LEAST_NODE_DAYS


def daily_rate(runs: Iterable[RunFacts], usual: float, now_s: float) -> DailyRate:
    """Return the rate of a fleet. `usual`: where it has shown too little; `now_s`: seconds since the epoch."""
    there = (since(run, now_s - WINDOW_S) for run in once(runs) if run.until_s <= now_s + AHEAD_S)
    seen = [run for run in there if run is not None]
    node_days = sum(node_seconds(seen).values()) / DAY_S
    days = {(host, int(at_s // DAY_S)) for run in seen for at_s, host in _gone(run)}
    failed = sum(min(count, MOST_OF_ONE) for count in Counter(host for host, _ in days).values())
    rate = (usual * PRIOR_NODE_DAYS + failed) / (PRIOR_NODE_DAYS + node_days)
    found = DailyRate(rate=min(rate, MOST), failed=failed, node_days=node_days, runs=len(seen))
    return found if found.is_enough else msgspec.structs.replace(found, rate=usual)


def _gone(run: RunFacts) -> Iterable[tuple[float, str]]:
    """Yield the hosts that a run lost, and when."""
    for each in run.incidents:
        lost = each.nodes if each.kind == "node_lost" else ()
        yield from ((each.at_s, host) for host in {*each.evicted, *lost})
