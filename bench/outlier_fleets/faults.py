"""Faults, and stretches of a fleet's life with one or none of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from outlier_fleets import settings as s
from outlier_fleets.fleet import (
    add_harmless,
    healthy,
    log_uniform,
    lose_samples,
    make_fleet,
    phases,
)
from outlier_fleets.types import Fault, Stretch

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    from robust_run.health.outliers.types import WatchedFleet


def make_stretch(
    seed: int,
    *,
    machines: int,
    faulty: bool,
    seconds: int = 900,
    onset_s: tuple[float, float] = (300, 600),
    kind: str = "",
) -> Stretch:
    """Return a stretch of a fleet's life, the same for the same arguments. With a fault it ends when the job does.

    Args:
        seed: of the random numbers.
        machines: at least 1.
        faulty: one machine has a fault, of a kind drawn by the paper's rates or the `kind` named.
        seconds: at most so long.
        onset_s: when the fault begins, between these.
        kind: a name of `settings.FAULTS`.
    """
    import numpy as np

    random = np.random.default_rng((seed, machines, faulty))
    fleet = make_fleet(machines)
    onset = random.uniform(*onset_s) if faulty else math.inf
    visible = log_uniform(random, s.VISIBLE_S)
    seconds = min(seconds, math.ceil(onset + visible)) if faulty else seconds
    chosen = _choose(random, kind)
    phase = phases(random, seconds, machines)
    speed = np.ones(seconds)
    reaction = math.ceil(onset + log_uniform(random, s.REACTION_S)) if faulty else seconds
    if faulty and chosen.job == "stops":
        phase[reaction:] = s.PHASES.index("hang")
    elif faulty:
        speed[reaction:] = random.uniform(*s.SLOWED_TO)
    values = healthy(random, fleet, phase, speed)
    add_harmless(random, values)
    fault = _afflict(random, fleet, values, chosen, onset) if faulty else None
    lose_samples(random, values)
    return Stretch(fleet=fleet, values=values.astype(np.float32), fault=fault)


def _choose(random: Generator, kind: str) -> s.FaultKind:
    import numpy as np

    if kind:
        return next(each for each in s.FAULTS if each.name == kind)
    shares = np.array([each.share for each in s.FAULTS])
    return s.FAULTS[int(random.choice(len(s.FAULTS), p=shares / shares.sum()))]


def _afflict(
    random: Generator, fleet: WatchedFleet, values: NDArray[np.float32], kind: s.FaultKind, onset: float
) -> Fault:
    seconds = len(values)
    culprit = int(random.integers(len(fleet.machines)))
    peers = [n for n, role in enumerate(fleet.roles) if role == fleet.roles[culprit] and n != culprit]
    neighbours: list[int] = []
    if peers and random.random() < kind.spreads_to_neighbours:
        neighbours = [int(n) for n in random.choice(peers, min(len(peers), int(random.integers(1, 4))), replace=False)]
    shown = []
    for name, sign in kind.signs.items():
        if random.random() >= sign.chance:
            continue
        shown.append(name)
        factor = log_uniform(random, sign.factor)
        start = math.ceil(onset + random.uniform(*s.SIGN_DELAY_S))
        _show(values, culprit, name, start, factor)
        for neighbour in neighbours:
            _show(values, neighbour, name, start + int(random.integers(2, 21)), factor ** random.uniform(0.3, 0.7))
    if random.random() < kind.unreachable:
        shown.append("silence")
        values[math.ceil(onset + random.uniform(*s.SIGN_DELAY_S)) :, culprit] = math.nan
    return Fault(
        kind=kind.name,
        machine=fleet.machines[culprit],
        onset_s=onset,
        end_s=float(seconds),
        signs=tuple(shown),
        neighbours=tuple(fleet.machines[n] for n in neighbours),
    )


def _show(values: NDArray[np.float32], machine: int, name: str, start: int, factor: float) -> None:
    for metric in s.GPU if name == "gpu" else (name,):
        column = s.METRICS.index(metric)
        most = s.LEVELS[metric].most
        values[start:, machine, column] = (values[start:, machine, column] * factor).clip(0, most)
