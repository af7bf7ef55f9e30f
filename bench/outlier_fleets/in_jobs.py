"""What a job makes of planted degradations, and of hours in which nothing is wrong: the way from heartbeats to `--on-outlier`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from outlier_fleets.job import DEGRADATIONS, make_job
from outlier_fleets.live import said_of

SMALL = (8, 16, 32, 64)
LIVE = 3_000_000
"""Where the seeds of these stretches begin."""


def live(count: int) -> list[dict[str, Any]]:
    """Plant each degradation in turn, and as many healthy stretches: who is named, and what would be done."""
    kinds: dict[str, Counter[str]] = {each.name: Counter() for each in DEGRADATIONS}
    delays: list[float] = []
    false = healthy = 0
    false_metrics: Counter[str] = Counter()
    acts: Counter[str] = Counter()
    for number in range(count):
        kind = DEGRADATIONS[number % len(DEGRADATIONS)].name
        for name in (kind, ""):
            stretch, steps = make_job(LIVE + number, machines=SMALL[number % len(SMALL)], degradation=name)
            found = False
            for said in said_of(stretch, steps):
                fault = stretch.fault
                is_it = fault is not None and said.machine == fault.machine and said.at_s >= fault.onset_s
                if said.what == "named":
                    if is_it and not found:
                        assert fault is not None
                        found = True
                        delays.append(said.at_s - fault.onset_s)
                        kinds[kind][f"by {said.metric}"] += 1
                    elif not is_it:
                        false += 1
                        false_metrics[said.metric] += 1
                else:
                    acts[f"{'culprit' if is_it else 'innocent'}: {said.what}"] += 1
            if name:
                kinds[kind]["found"] += found
                kinds[kind]["planted"] += 1
            else:
                healthy += len(stretch.values) * len(stretch.fleet.machines)
        print(kind, dict(kinds[kind]), f"false {false}", flush=True)
    found_all = sum(each["found"] for each in kinds.values())
    case = {
        "found": found_all,
        "planted": count,
        "false": false,
        "false_metrics": dict(false_metrics),
        "healthy_machine_days": round(healthy / 86400, 2),
        "delay_s_p10_p50_p90": [round(float(each), 1) for each in np.percentile(delays or [math.nan], [10, 50, 90])],
        "acts": dict(acts),
        "kinds": {name: dict(each) for name, each in kinds.items()},
    }
    return [case]


def healthy(hours: float, machines: int, seeds: int) -> list[dict[str, Any]]:
    """Let healthy jobs live for hours: who is named, and what `--on-outlier evict` would do. Nothing is the right answer."""
    cases = []
    for seed in range(seeds):
        stretch, steps = make_job(LIVE + 500 + seed, machines=machines, seconds=int(hours * 3600))
        said = Counter(f"{each.what} {each.metric}" for each in said_of(stretch, steps))
        acts = sum(count for what, count in said.items() if what.startswith(("diagnose", "evict")))
        cases.append({"hours": hours, "machines": machines, "false_actions": acts, "said": dict(said)})
        print(cases[-1], flush=True)
    return cases
