"""From the step marks of a rank to its pace. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from robust_run.tracer.pace.types import MOST_STEPS, ROUND_S, STEPS_NEEDED, RankPace
from robust_run.tracer.types import StepMark

FAST_STEPS = 4 * MOST_STEPS
"""In a round: from here on nodes would hardly ever send the same newest steps, so they send steps at round numbers."""


def pace_of(
    marks: Sequence[StepMark], steps: int, since_step: int = 0, *, rank: int, node: str, round_s: float = ROUND_S
) -> RankPace | None:
    """Return the pace of the newest steps after `since_step`, at most `MOST_STEPS`; None if fewer than `STEPS_NEEDED` are known.

    `marks`: oldest first, the last belongs to step number `steps`. Marks before a damaged one (time that runs backwards, no
    number) are ignored. With many steps in a round, the window ends at a step number that other nodes choose too.
    """
    sound = _sound(marks)
    first, last = _window(sound, steps, since_step, round_s)
    if last - first + 1 < STEPS_NEEDED:
        return None
    own, whole = [], []
    for step in range(first, last + 1):
        after = sound[len(sound) - 1 - (steps - step)]
        before = sound[len(sound) - 2 - (steps - step)]
        length_ms = (after.at_s - before.at_s) * 1e3
        blocked_ms = (after.blocked_s - before.blocked_s) * 1e3
        whole.append(round(length_ms, 3))
        own.append(round(max(0.0, length_ms - blocked_ms), 3))
    return RankPace(rank=rank, node=node, first_step=first, own_ms=tuple(own), step_ms=tuple(whole))


def _sound(marks: Sequence[StepMark]) -> Sequence[StepMark]:
    """Return the newest marks in which time and blocked time never run backwards."""
    for index in range(len(marks) - 1, -1, -1):
        mark = marks[index]
        if not (math.isfinite(mark.at_s) and math.isfinite(mark.blocked_s)):
            return marks[index + 1 :]
        if index + 1 < len(marks):
            following = marks[index + 1]
            if following.at_s < mark.at_s or following.blocked_s < mark.blocked_s:
                return marks[index + 1 :]
    return marks


def _window(marks: Sequence[StepMark], steps: int, since_step: int, round_s: float) -> tuple[int, int]:
    """Return the first and the last step to send. A step is known that has a mark and one before it."""
    oldest = max(steps - len(marks) + 2, since_step + 1, 2)
    if not marks:
        return oldest, oldest - 1
    in_round = sum(1 for mark in marks if mark.at_s > marks[-1].at_s - round_s)
    if in_round < FAST_STEPS:
        return max(oldest, steps - MOST_STEPS + 1), steps
    stride = 1 << (in_round.bit_length() - 1)
    while stride >= MOST_STEPS:
        last = steps // stride * stride
        if last - MOST_STEPS + 1 >= oldest:
            return last - MOST_STEPS + 1, last
        stride //= 2
    return max(oldest, steps - MOST_STEPS + 1), steps
