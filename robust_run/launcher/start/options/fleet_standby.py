"""`--standby auto`: as many nodes as fail on 99 of 100 days, by what the jobs of this folder have shown.

More standbys cost money, fewer cost time, and what the folder holds is not to be relied on: it may be empty, foreign, damaged, of
other machines. So a rate is taken from it only where much was seen, blended with the usual one and bounded (`fleet.daily`), and
what cannot be read changes nothing but the line. Whether a job has one node or several never depends on it, nor how many nodes
work: under Slurm, where each task reckons by itself how many of the step's nodes stand by, the usual rate counts.

Nodes of a job may see different folders, and other jobs write meanwhile. What the node says that hosts the controller counts;
only nodes that may be that one look.
"""

from __future__ import annotations

import time

from robust_run.launcher.core.spares import DAILY_FAILURE_RATE, standby_count
from robust_run.launcher.model.world import World, shown
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.run_output import resolve_log_dir


def standbys_by_fleet(most: int, options: Options, world: World) -> tuple[int, str]:
    """Return how many standbys `auto` is for so many nodes, and why: one line. Raises UserError as `resolve_log_dir`."""
    log_dir, _ = resolve_log_dir(options, world)
    return standbys_for(most, log_dir, world)


def standbys_for(most: int, log_dir: str | None, world: World) -> tuple[int, str]:
    """Return the same by the jobs of a folder; None: none is kept."""
    usual = standby_count(most)
    if log_dir is None or world.fleet is None:
        return usual, f"{_standbys(usual)}: {_per_1000(DAILY_FAILURE_RATE)}, as in large clusters"
    from robust_run.fleet.daily import LEAST_NODE_DAYS, daily_rate

    found = world.fleet(log_dir)
    seen = daily_rate(found.facts, DAILY_FAILURE_RATE, time.mktime(world.local_time()))
    words = found.left_out_words()
    left_out = f" (left out: {words})" if words else ""
    jobs = f"in {seen.node_days:,.0f} node-days of {seen.runs} jobs of {shown(log_dir)}{left_out}"
    if not seen.is_enough:
        few = f"{jobs} too little was seen, {LEAST_NODE_DAYS:.0f} node-days are needed"
        return usual, f"{_standbys(usual)}: {_per_1000(DAILY_FAILURE_RATE)}, as in large clusters; {few}"
    count = standby_count(most, seen.rate)
    else_ = f"; {usual} without them" if usual != count else ""
    return count, f"{_standbys(count)}: {seen.failed} nodes failed {jobs}, taken as {_per_1000(seen.rate)}{else_}"


def _standbys(count: int) -> str:
    return f"{count} standby{'' if count == 1 else 's'}"


def _per_1000(rate: float) -> str:
    return f"{rate * 1000:.1f} of 1,000 nodes fail a day"
