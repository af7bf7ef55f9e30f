"""How often a run has saved to storage: by its folder of checkpoints, what nodes told of, and what was asked for. Pure.

The folder has them all where nothing is removed from it, but other runs may save there, too: those that were made in this one's
time count. Nodes tell of the first save of an attempt, of its last, and seldom of those in between.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from robust_run.clock import seconds_of
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.resume_events import SavedCheckpoint

#: Two that were made within it are the same, as two clocks tell of it.
_SAME_S = 0.01


class Saves(msgspec.Struct, frozen=True, kw_only=True):
    """Saves to storage of one run."""

    count: int = 0
    """That are known of: there may have been more."""
    every_s: float | None = None
    """Median time between two."""


def saves_of(
    spec: JobSpec,
    folder: Iterable[tuple[float, int | None]],
    told: Iterable[SavedCheckpoint],
    began_s: float,
    until_s: float,
    step_s: float | None,
) -> Saves:
    """Return what is known of a run's saves. `folder`: when each checkpoint there was made, and its step."""
    here = sorted(at_s for at_s, _ in folder if began_s <= at_s <= until_s)
    others = [each.created_unix_s for each in told if began_s <= each.created_unix_s <= until_s]
    every_s = _usual(here) if spec.ckpt_keep in ("", "all") else None
    return Saves(
        count=_different([*here, *others]), every_s=_asked(spec.ckpt_every, step_s) if every_s is None else every_s
    )


def _different(moments_s: Sequence[float]) -> int:
    ordered = sorted(moments_s)
    return bool(ordered) + sum(after - before > _SAME_S for before, after in itertools.pairwise(ordered))


def _usual(moments_s: Sequence[float]) -> float | None:
    gaps_s = [after - before for before, after in itertools.pairwise(moments_s) if after - before > _SAME_S]
    return statistics.median(gaps_s) if len(gaps_s) > 1 else None


def _asked(every: str, step_s: float | None) -> float | None:
    """Return how often it was told to save (--ckpt-every: so many steps, or a time), in seconds."""
    if every.isdecimal():
        return int(every) * step_s if step_s is not None else None
    asked_s = seconds_of(every, "smh")
    return asked_s if 0 < asked_s < float("inf") else None
