"""How often storage is written. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from robust_run.errors import UserError

_EVERY = re.compile(r"([0-9]{1,9})(s|m|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Every:
    """So many steps, or so much time; one of the two is 0."""

    steps: int = 0
    seconds: float = 0.0


AT_EVERY_CALL = Every(steps=1)
BESIDE_MEMORY = Every(seconds=600.0)


def parse_every(text: int | str) -> Every:
    """Return what `500` or `10m` says. Raises UserError."""
    found = _EVERY.fullmatch(str(text).strip())
    if isinstance(text, bool) or found is None or int(found[1]) == 0:
        raise UserError(
            f"every {text!r} (ROBUST_CKPT_EVERY): give a number of steps, as 500, or a time, as 30s, 10m, 2h"
        )
    if found[2] is None:
        return Every(steps=int(found[1]))
    return Every(seconds=int(found[1]) * _SECONDS[found[2]])


def is_step_due(every: Every, last: int, step: int) -> bool:
    """Whether storage is written after `step`. `last`: the step of the call before, or the one that was loaded; 0: none.

    A program that calls at each third step only passes multiples by: what counts is that there was one since the last call.
    """
    return every.steps == 1 or step // every.steps != last // every.steps


def is_time_due(every: Every, waited_s: float) -> bool:
    """Whether storage is written, so long after it was last."""
    return waited_s >= every.seconds
