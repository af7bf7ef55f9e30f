"""The fault process: what strikes which host when, for the whole time, from a seed alone.

Each host has a stream of its own, so that plans that differ in standbys, times or mechanisms meet the same faults: their
difference is what they do about them.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterator

import msgspec

from robust_run.planning.words import FaultKind, Mix, Plan

DAY_S = 86400.0


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault as it truly is."""

    number: int
    at_s: float
    name: str
    kind: FaultKind
    host: int
    """Index of the host, the first of those that are hit; -1: of the job as a whole."""
    stays: bool
    """It is in the node until that is repaired."""


def faults_of(plan: Plan, seed: int) -> list[Fault]:
    """Return all faults in order of time. Deterministic: by the mix, nodes, standbys, days and the seed."""
    horizon_s = plan.days * DAY_S
    found = sorted(itertools.chain(_of_job(plan.mix, seed, horizon_s), _of_hosts(plan, seed, horizon_s)))
    return [
        Fault(number=number, at_s=at_s, name=name, kind=plan.mix.faults[name], host=host, stays=stays)
        for number, (at_s, name, host, stays) in enumerate(found)
    ]


def _of_job(mix: Mix, seed: int, horizon_s: float) -> Iterator[tuple[float, str, int, bool]]:
    for name, kind in mix.faults.items():
        rng = random.Random(f"{seed}/job/{name}")
        for at_s in _arrivals(rng, kind.per_day / DAY_S, horizon_s):
            yield at_s, name, -1, False


def _of_hosts(plan: Plan, seed: int, horizon_s: float) -> Iterator[tuple[float, str, int, bool]]:
    mix = plan.mix
    names = [name for name, kind in mix.faults.items() if kind.per_1000_node_days > 0]
    rates = [mix.faults[name].per_1000_node_days / 1000.0 / DAY_S for name in names]
    sums = list(itertools.accumulate(rates))
    if not sums or not sums[-1]:
        return
    peak = 1.0 + mix.young_factor
    for host in range(plan.nodes + plan.standby):
        rng = random.Random(f"{seed}/host/{host}")
        rate = sums[-1] * _multiplier(mix, rng) * peak
        for at_s in _arrivals(rng, rate, horizon_s):
            which, age, stays = rng.random(), rng.random(), rng.random()
            if age * peak > 1.0 + mix.young_factor * math.exp(-at_s / (mix.young_days * DAY_S)):
                continue
            name = names[min(bisect.bisect(sums, which * sums[-1]), len(names) - 1)]
            kind = mix.faults[name]
            first = host - host % kind.nodes if kind.nodes > 1 else host
            yield at_s, name, first, stays < kind.stays


def _multiplier(mix: Mix, rng: random.Random) -> float:
    """Return how often this host fails, in terms of the mean over all hosts."""
    usual = 1.0 / (1.0 + mix.lemons * (mix.lemon_factor - 1.0))
    return usual * (mix.lemon_factor if rng.random() < mix.lemons else 1.0)


def _arrivals(rng: random.Random, rate_per_s: float, horizon_s: float) -> Iterator[float]:
    """Yield the times of a Poisson process."""
    at_s = rng.expovariate(rate_per_s) if rate_per_s > 0 else horizon_s
    while at_s < horizon_s:
        yield at_s
        at_s += rng.expovariate(rate_per_s)
