"""What starts cost, by the size of the job and by what they began from. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from robust_run.fleet.results import StartGroup
from robust_run.fleet.words import RunFacts, StartFacts
from robust_run.report.startup.profile import quantile

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
"""Most nodes of each group; a last one has no end."""
_ORDER = ("cold", "warm", "standby")


def groups(runs: Iterable[RunFacts]) -> tuple[StartGroup, ...]:
    """Return the groups that have starts, small jobs first."""
    found: dict[tuple[int, str], list[StartFacts]] = {}
    for run in runs:
        for each in run.starts:
            size = next((at for at, most in enumerate(SIZES) if each.nodes <= most), len(SIZES))
            found.setdefault((size, each.began), []).append(each)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], _ORDER.index(item[0][1])))
    return tuple(_group(size, starts) for (size, _), starts in ordered)


def _group(size: int, starts: list[StartFacts]) -> StartGroup:
    ready = [each.ready_s for each in starts if each.ready_s is not None]
    first = [each.first_step_s for each in starts if each.first_step_s is not None]
    whole = sorted(
        each.ready_s + each.first_step_s
        for each in starts
        if each.ready_s is not None and each.first_step_s is not None
    )
    return StartGroup(
        least_nodes=SIZES[size - 1] + 1 if size else 1,
        most_nodes=SIZES[size] if size < len(SIZES) else max(each.nodes for each in starts),
        began=starts[0].began,
        starts=len(starts),
        ready_s=statistics.median(ready) if ready else None,
        first_step_s=statistics.median(first) if first else None,
        whole_s=statistics.median(whole) if whole else None,
        whole_p95_s=quantile(whole, 0.95) if whole else None,
    )
