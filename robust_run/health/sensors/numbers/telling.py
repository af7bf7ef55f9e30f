"""A sensor that also tells what its readings measure (`health.sensors.numbers.measures`), for nodes to be compared by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from robust_run.health.sensors.numbers.measures import MEASURES
from robust_run.health.sensors.types import Event, Sensor
from robust_run.health.sensors.usage import Measured

#: Numbers of a sensor that reads often are old after so long; those of others after two and a half times their interval.
FRESH_S, FRESH_INTERVALS = 15.0, 2.5


def telling(sensor: Sensor, tell: Callable[[Measured], None]) -> Sensor:
    """Return the sensor, telling what each reading measures; one of which nothing is compared comes back as it is.

    Its judging goes on whatever becomes of the numbers: a fault there ends them, not the sensor.
    """
    measure = MEASURES.get(sensor.name)
    if measure is None:
        return sensor
    before: list[tuple[Any, float]] = []
    fresh_s = max(FRESH_S, FRESH_INTERVALS * sensor.interval_s)
    is_sound = True

    def judge(state: Any, sample: Any, now_s: float) -> tuple[Any, tuple[Event, ...]]:
        nonlocal is_sound
        if is_sound:
            old, old_s = before[0] if before else (None, now_s)
            before[:] = [(sample, now_s)]
            try:
                values = measure(old, sample, now_s - old_s)
            except Exception:  # a mistake of ours, or a driver that answers in another form
                is_sound, values = False, {}
            if values:
                tell(Measured(values=values, fresh_s=fresh_s))
        return sensor.judge(state, sample, now_s)

    return replace(sensor, judge=judge)
