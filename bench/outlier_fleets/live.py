"""The comparing of a job, fed as a job feeds it: the same rows, the same options, the same child's code, the same judging of what
lasts. Only the pipe between the two processes is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from outlier_fleets.types import Stretch
from robust_run.health.commands.outliers import verdicts_of
from robust_run.health.outliers import feed, standing
from robust_run.health.outliers.acting import rung_of
from robust_run.health.outliers.rows import Columns, MachineRow, Oddities, to_row
from robust_run.health.outliers.types import OutlierLimits
from robust_run.health.rules.types import Comparing
from robust_run.health.sensors.usage import UNKNOWN
from robust_run.launcher.controller.comparing.fleet_comparison import STEP_S
from robust_run.launcher.controller.comparing.outlier_words import staying

HEARTBEAT_S = 1.0
_JITTER_S = 0.2


@dataclass(frozen=True, slots=True)
class Said:
    """What a job would say of one node."""

    at_s: float
    machine: str
    metric: str
    what: str
    """named, or what `--on-outlier evict` makes of a node that stays apart: report, diagnose, evict."""


def said_of(stretch: Stretch, steps: Any, comparing: Comparing | None = None, seed: int = 0) -> Iterator[Said]:
    """Yield what is said of the nodes of a job over a stretch of its life. `steps`: at which seconds it makes any."""
    comparing = comparing or Comparing()
    given = dict(zip(*[iter(feed.arguments(comparing, HEARTBEAT_S))] * 2, strict=True))
    limits = OutlierLimits(
        apart=float(given["--apart"]),
        hold_factor=float(given["--hold"]),
        settle_s=float(given["--settle"]),
        repeat_s=float(given["--repeat"]),
    )
    fleet, oddities = stretch.fleet, Oddities()
    standings: standing.Standings = {}
    lasting: list[Said] = []
    random = np.random.default_rng(seed)
    now_s = 0.0

    def rows() -> Iterator[MachineRow]:
        nonlocal standings, now_s
        stepped_s = 0.0
        for second, values in enumerate(stretch.values):
            stepped_s = second if steps[second] else stepped_s
            beats = second + random.uniform(-_JITTER_S, _JITTER_S, len(values))
            usages = np.where(np.isnan(values), UNKNOWN, values)
            for at in np.argsort(beats, kind="stable"):
                if np.isnan(values[at]).all():
                    continue  # no heartbeat comes
                now_s, machine = float(beats[at]), fleet.machines[at]
                if machine in standings:
                    standings, verdict = standing.heard(
                        standings,
                        machine,
                        now_s,
                        nodes=len(fleet.machines),
                        makes_steps=second - stepped_s <= STEP_S,
                        stays_s=comparing.stays_s,
                    )
                    if verdict is not None:
                        event = staying(verdict, comparing.stays_s, now_s, knows_roles=True)
                        metric = event.name.removeprefix(f"{feed.STAYS}.")
                        what = rung_of("evict", metric, event.value, event.limit)
                        lasting.append(Said(now_s, machine, metric, what))
                if second - stepped_s > STEP_S:
                    continue
                usage = [float(f"{value:.4g}") for value in usages[at].tolist()]
                line = msgspec.json.encode(feed.row(now_s, machine, fleet.roles[at], usage))
                yield to_row(msgspec.json.decode(line), Columns(), "row", oddities)

    for verdict in verdicts_of(rows(), float(given["--interval"]), limits, oddities):
        yield from lasting
        lasting.clear()
        standings = standing.named(standings, verdict, now_s)
        if verdict.state == "new":
            yield Said(now_s, verdict.machine, verdict.metric, "named")
    yield from lasting
