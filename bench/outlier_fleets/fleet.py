"""A healthy fleet: roles, machines that differ, phases of a job, noise, harmless events, missing samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from outlier_fleets import settings as s
from robust_run.health.outliers.metrics import metric_named
from robust_run.health.outliers.types import WatchedFleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    from robust_run.health.outliers.types import Array


def make_fleet(machines: int, levels: Mapping[str, s.Level] = s.LEVELS) -> WatchedFleet:
    """Return a job of so many machines, with these metrics.

    Roles are pipeline stages of at least four machines, at most eight stages.
    """
    stages = max(1, min(8, machines // 4))
    return WatchedFleet(
        machines=tuple(f"node-{number:04d}" for number in range(machines)),
        roles=tuple(f"stage-{number * stages // machines}" for number in range(machines)),
        metrics=tuple(metric_named(name) for name in levels),
    )


def phases(random: Generator, seconds: int, machines: int) -> NDArray[np.int8]:
    """Return seconds x machines: the number of the phase (see `settings.PHASES`) that each machine is in."""
    import numpy as np

    phase = np.zeros((seconds, machines), dtype=np.int8)
    for number, every_s, length_s in (
        (2, s.EVALUATE_EVERY_S, s.EVALUATE_S),
        (1, s.CHECKPOINT_EVERY_S, s.CHECKPOINT_S),
    ):
        period = random.uniform(*every_s)
        start = random.uniform(0, period)
        while start < seconds:
            length = random.uniform(*length_s)
            enter = start + np.minimum(random.exponential(s.PHASE_LAG_S, machines), 6)
            leave = start + length + np.minimum(random.exponential(s.PHASE_LAG_S, machines), 6)
            late = random.random(machines) < s.STRAGGLER_SHARE
            leave += late * random.uniform(*s.STRAGGLER_S, machines)
            clock = np.arange(seconds)[:, None]
            phase[(clock >= enter) & (clock < leave)] = number
            start += period
    return phase


def healthy(
    random: Generator,
    fleet: WatchedFleet,
    phase: NDArray[np.int8],
    speed: Array,
    levels: Mapping[str, s.Level] = s.LEVELS,
) -> NDArray[np.float32]:
    """Return seconds x machines x metrics without harmless events; `speed` is what the job's pace is multiplied by, a second."""
    import numpy as np

    seconds, machines = phase.shape
    role_names = sorted(set(fleet.roles))
    role = np.array([role_names.index(name) for name in fleet.roles])
    step_s = random.uniform(*s.STEP_S)
    at_role = random.uniform(0, 0.3, len(role_names))[role] + random.normal(0, 0.01, machines)
    swing = np.sin(2 * math.pi * (np.arange(seconds)[:, None] / step_s + at_role)) / max(1.0, 4.0 / step_s)
    values = np.empty((seconds, machines, len(levels)), dtype=np.float32)
    for column, (name, level) in enumerate(levels.items()):
        usual = level.usual * np.exp(random.normal(0, level.role_spread, len(role_names)))[role]
        usual = usual * np.exp(random.normal(0, level.machine_spread, machines))
        if name == "cpu_percent":
            usual[0] *= s.LEADER_CPU
        value = usual * np.array(level.phases)[phase] * (1 + level.step_swing * swing * (phase == 0))
        if level.is_paced:
            value = value * speed[:, None]
        noise = _correlated(random, seconds, machines) * level.noise
        value = value * np.exp(noise) if level.is_bursty else value * (1 + noise)
        values[:, :, column] = np.clip(value, 0, level.most)
    return values


def _correlated(random: Generator, seconds: int, machines: int) -> Array:
    import numpy as np

    noise = random.standard_normal((seconds, machines))
    fresh = math.sqrt(1 - s.NOISE_MEMORY**2)
    for second in range(1, seconds):
        noise[second] = s.NOISE_MEMORY * noise[second - 1] + fresh * noise[second]
    return np.asarray(noise, dtype=np.float64)


def add_harmless(
    random: Generator,
    values: NDArray[np.float32],
    events: Sequence[s.Harmless] = s.HARMLESS,
    levels: Mapping[str, s.Level] = s.LEVELS,
) -> None:
    """Change `values` in place: events that come and pass, at single machines or racks."""
    seconds, machines, _ = values.shape
    columns = {name: column for column, name in enumerate(levels)}
    for event in events:
        longest = event.seconds[1]
        hours = machines * (seconds + longest) / 3600
        for _ in range(random.poisson(event.per_machine_hour * hours)):
            first = random.integers(machines)
            affected = slice(first, first + 1)
            if random.random() < event.rack_share:
                rack = first // s.RACK_MACHINES * s.RACK_MACHINES
                affected = slice(rack, rack + s.RACK_MACHINES)
            start = random.uniform(-longest, seconds)
            end = start + log_uniform(random, event.seconds)
            when = slice(max(0, math.ceil(start)), max(0, math.ceil(end)))
            for name, factor in event.factors.items():
                values[when, affected, columns[name]] *= log_uniform(random, factor)
    for column, level in enumerate(levels.values()):
        values[:, :, column].clip(0, level.most, out=values[:, :, column])


def lose_samples(random: Generator, values: NDArray[np.float32]) -> None:
    """Change `values` in place: single samples are missing, and collectors restart."""
    import numpy as np

    seconds, machines, _ = values.shape
    values[random.random(values.shape, dtype=np.float32) < s.MISSING_SHARE] = np.nan
    for _ in range(random.poisson(s.GAPS_PER_MACHINE_HOUR * machines * seconds / 3600)):
        start = random.integers(seconds)
        values[start : start + random.integers(*s.GAP_S), random.integers(machines)] = np.nan


def log_uniform(random: Generator, bounds: tuple[float, float]) -> float:
    """Return a number between the bounds, any factor as likely as any other."""
    return math.exp(random.uniform(math.log(bounds[0]), math.log(bounds[1])))
