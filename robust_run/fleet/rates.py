"""How often what fails: counts over node-days, with exact intervals. Pure.

A rate is divided by the time that nodes were part of jobs: what broke while no job ran is not seen, and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from robust_run.fleet.poisson import LEVEL, interval
from robust_run.fleet.results import Rate
from robust_run.fleet.words import IncidentFacts, RunFacts

DAY_S = 86400.0
MACHINE = frozenset({"gpu", "network", "disk", "memory", "cpu", "node"})
"""Parts of a machine: a fault in one of these is the node's. What storage and programs do, they do on any node."""
AGAIN_S = 3600.0
"""What strikes the same node again within this time is the same fault."""
#: Kinds that are somebody's wish, or the program's own.
_NOT_FAILURES = frozenset({"stopped"})


def rate(count: int, node_s: float, level: float = LEVEL) -> Rate | None:
    """Return the rate of `count` in so much node time; None where there was none."""
    if not node_s > 0.0:
        return None
    days = node_s / DAY_S
    low, high = interval(count, level)
    scale = 1000.0 / days
    return Rate(count=count, node_days=days, per_1000=count * scale, low=low * scale, high=high * scale)


def node_seconds(runs: Iterable[RunFacts]) -> dict[str, float]:
    """Return how long each node was part of jobs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for node, lasted_s in run.node_s.items():
            found.setdefault(node, []).append(max(lasted_s, 0.0))
    return {node: math.fsum(found[node]) for node in sorted(found)}


def interrupts(incident: IncidentFacts) -> bool:
    """Whether an incident is a failure that ended an attempt."""
    return incident.action != "report" and incident.kind not in _NOT_FAILURES


def is_of_machine(incident: IncidentFacts) -> bool:
    """Whether it was in a part of a machine."""
    return incident.component in MACHINE and incident.kind not in _NOT_FAILURES


def overall(incidents: Sequence[IncidentFacts], node_s: float) -> dict[str, Rate]:
    """Return the rates that others publish, too: what stopped training, what a machine did, nodes that were sent away."""
    counts = {
        "interruptions": sum(map(interrupts, incidents)),
        "machine faults": len(faults(filter(is_of_machine, incidents), lambda _: "machine")),
        "evictions": sum(len(each.evicted) for each in incidents),
    }
    return _rates(counts, node_s)


def rates_by(
    incidents: Iterable[IncidentFacts], name_of: Callable[[IncidentFacts], str], node_s: float
) -> dict[str, Rate]:
    """Return the rate of the faults of each name, the most frequent first."""
    counts: dict[str, int] = {}
    for each in faults(incidents, name_of):
        name = name_of(each)
        counts[name] = counts.get(name, 0) + 1
    return _rates(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))), node_s)


def faults(incidents: Iterable[IncidentFacts], name_of: Callable[[IncidentFacts], str]) -> list[IncidentFacts]:
    """Return the first incident of each fault: what strikes the same nodes again within an hour is the same one.

    Counts of what is not independent would make intervals too narrow. What names no node counts each time: in a large job
    faults that have nothing to do with each other are less than an hour apart.
    """
    found: list[IncidentFacts] = []
    last_s: dict[tuple[str, str], float] = {}
    for each in sorted(incidents, key=lambda each: each.at_s):
        keys = [(name_of(each), node) for node in each.nodes]
        if not keys or any(each.at_s - last_s.get(key, float("-inf")) > AGAIN_S for key in keys):
            found.append(each)
        last_s.update((key, each.at_s) for key in keys)
    return found


def _rates(counts: Mapping[str, int], node_s: float) -> dict[str, Rate]:
    found = {name: rate(count, node_s) for name, count in counts.items()}
    return {name: each for name, each in found.items() if each is not None}
