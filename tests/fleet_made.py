"""Runs of a made fleet, with rates that are known: of kinds, and of lemon nodes. All chance is from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from robust_run.fleet.words import Component, IncidentFacts, Lost, RunFacts, StartFacts
from robust_run.report.types import VerdictKind

BEGIN_S = 1_790_000_000.0
DAY_S = 86400.0


KINDS: Mapping[VerdictKind, tuple[Component, float]] = {
    "crash": ("gpu", 6.0),
    "hang": ("network", 3.0),
    "node_lost": ("node", 2.0),
    "code": ("code", 9.0),
    "slow": ("cpu", 1.0),
}


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """What happens how often, per 1,000 node-days."""

    kinds: Mapping[VerdictKind, tuple[Component, float]] = msgspec.field(default_factory=lambda: KINDS)
    lemons: Mapping[str, float] = {}
    """Nodes with faults of their GPUs beside those, per 1,000 node-days."""
    nodes: int = 200
    """Of the cluster; runs are on some of them."""
    runs: int = 1000
    most_nodes: int = 12
    hours: float = 60.0
    """Of a run, in the middle."""


def name_of(node: int) -> str:
    return f"gpu-{node:04d}"


def fleet(planted: Planted, seed: int) -> list[RunFacts]:
    """Return the runs; each kind strikes each node by a Poisson process, for as long as the node is part of a run."""
    rng = random.Random(seed)
    return [_run(planted, index, rng) for index in range(planted.runs)]


def _run(planted: Planted, index: int, rng: random.Random) -> RunFacts:
    began_s = BEGIN_S + rng.uniform(0.0, 90.0) * DAY_S
    lasted_s = rng.lognormvariate(math.log(planted.hours), 0.8) * 3600.0
    names = [name_of(node) for node in rng.sample(range(planted.nodes), rng.randint(1, planted.most_nodes))]
    struck: list[tuple[float, VerdictKind, Component, str]] = []
    for kind, (component, per_1000) in planted.kinds.items():
        count = poisson(rng, per_1000 / 1000.0 * lasted_s / DAY_S * len(names))
        struck += [(began_s + rng.uniform(0.0, lasted_s), kind, component, rng.choice(names)) for _ in range(count)]
    for name in names:
        count = poisson(rng, planted.lemons.get(name, 0.0) / 1000.0 * lasted_s / DAY_S)
        struck += [(began_s + rng.uniform(0.0, lasted_s), "crash", "gpu", name) for _ in range(count)]
    incidents = tuple(
        incident(
            number,
            at_s,
            kind,
            component=component,
            trouble="ecc" if component == "gpu" else "",
            nodes=(name,),
            action="evict" if component == "gpu" else "relaunch",
            evicted=(name,) if component == "gpu" else (),
            lost=Lost(detect=rng.uniform(1.0, 60.0), load=rng.uniform(5.0, 90.0), redo=rng.uniform(0.0, 300.0)),
        )
        for number, (at_s, kind, component, name) in enumerate(sorted(struck), start=1)
    )
    lost_s = sum(each.lost.detect + each.lost.load + each.lost.redo for each in incidents) + 40.0
    return run(
        f"job-{index:04d}",
        began_s=began_s,
        until_s=began_s + lasted_s,
        state=rng.choice(("done", "done", "done", "failed", "stopped")),
        name=rng.choice(("llama-70b.py", "moe.py", "finetune.py")),
        nodes=len(names),
        ranks=8 * len(names),
        gpus=8 * len(names),
        effective_s=max(lasted_s - lost_s, 0.0),
        node_s=dict.fromkeys(names, lasted_s),
        incidents=incidents,
        starts=tuple(_start(number, began_s, len(names), rng) for number in range(len(incidents) + 1)),
    )


def _start(number: int, at_s: float, nodes: int, rng: random.Random) -> StartFacts:
    began = rng.choice(("warm", "standby")) if number else "cold"
    ready_s = rng.uniform(4.0, 8.0) if began == "cold" else rng.uniform(0.5, 1.5)
    return StartFacts(
        attempt=number,
        at_s=at_s,
        nodes=nodes,
        began=began,  # type: ignore[arg-type]
        ready_s=ready_s * (1 + nodes / 8),
        first_step_s=rng.uniform(8.0, 30.0),
    )


def poisson(rng: random.Random, mean: float) -> int:
    """Return a count (Knuth, for the small means of a run)."""
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


def few_enough(total: int, share: float, least: float = 1e-5) -> int:
    """Return a count that a binomial one exceeds with this probability at most."""
    term, below, count = total * math.log1p(-share), 0.0, 0
    while True:
        below += math.exp(term)
        if 1.0 - below <= least:
            return count
        term += math.log((total - count) / (count + 1)) + math.log(share) - math.log1p(-share)
        count += 1


def incident(number: int = 1, at_s: float = BEGIN_S, kind: VerdictKind = "crash", **more: Any) -> IncidentFacts:
    """An incident of one node's GPU, as a rule sees it that is sure."""
    known = {"symptom": kind, "component": "gpu", "nodes": ("gpu-0001",), "action": "relaunch", "confidence": "high"}
    return IncidentFacts(**{"number": number, "at_s": at_s, "kind": kind, **known, **more})


def run(run_id: str = "job", **more: Any) -> RunFacts:
    """A run of one day on one node."""
    known: dict[str, Any] = {"began_s": BEGIN_S, "until_s": BEGIN_S + DAY_S, "state": "done", "name": "train.py"}
    return RunFacts(**{"run_id": run_id, **known, **more})
