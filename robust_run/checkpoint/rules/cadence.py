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
#: What is younger than nothing by more was made by another clock, or before this one was set back.
AHEAD_S = 60.0


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


def stored_since_s(newest_unix_s: float | None, now_unix_s: float, *, is_restart: bool) -> float:
    """Return for how long storage has had nothing newer. That goes on over restarts, or a job that fails often never saves.

    `newest_unix_s`: when its newest checkpoint was made; None: there is none, or no telling. One that is yet to come tells
    nothing: a job that fails often would save no more until that time has come.
    """
    if newest_unix_s is not None and newest_unix_s <= now_unix_s + AHEAD_S:
        return max(0.0, now_unix_s - newest_unix_s)
    return float("inf") if is_restart else 0.0
