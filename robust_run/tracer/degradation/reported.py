"""What a script reports of its throughput: tokens, and what was planned. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from robust_run.tracer.pace.types import Reported

TOKENS, RATE = "tokens", "tokens_per_s"
PLANNED_RATE, PLANNED_STEP = "planned_tokens_per_s", "planned_step_s"


def reported(points: Sequence[tuple[float, Mapping[str, float]]]) -> Reported | None:
    """Return what reports say, oldest first, each with its time; None: nothing of this.

    `tokens`: of what was done since the report before. `tokens_per_s`: as the script counts it. `planned_*`: the newest.
    """
    rates = [(at_s, values[TOKENS]) for at_s, values in points if _is_amount(values.get(TOKENS))]
    tokens_per_s = _newest(points, RATE)
    if tokens_per_s is None and len(rates) > 1 and rates[-1][0] > rates[0][0]:
        tokens_per_s = sum(count for _, count in rates[1:]) / (rates[-1][0] - rates[0][0])
    said = Reported(tokens_per_s, _newest(points, PLANNED_RATE), _newest(points, PLANNED_STEP))
    return said if said != Reported() else None


def _newest(points: Sequence[tuple[float, Mapping[str, float]]], name: str) -> float | None:
    return next((values[name] for _, values in reversed(points) if _is_amount(values.get(name))), None)


def _is_amount(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
