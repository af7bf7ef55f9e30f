"""From the step marks of a rank to its pace, and from what its GPU says of steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from robust_run.tracer.pace.types import LARGEST_STRIDE, MOST_STEPS, ROUND_S, STEPS_NEEDED, RankPace, TimedPace
from robust_run.tracer.types import StepMark, StepPhases

FAST_STEPS = 4 * MOST_STEPS
"""In a round: from here on nodes would hardly ever send the same newest steps, so they send steps at round numbers."""


def pace_of(
    marks: Sequence[StepMark],
    steps: int,
    since_step: int = 0,
    *,
    rank: int,
    node: str,
    round_s: float = ROUND_S,
    data_waits: Mapping[int, float] = {},
) -> RankPace | None:
    """Return the pace of the newest steps after `since_step`, at most `MOST_STEPS`; None if fewer than `STEPS_NEEDED` are known.

    `marks`: oldest first, the last belongs to step number `steps`. Marks before a damaged one (time that runs backwards, no
    number) are ignored. With many steps in a round, the window ends at a step number that other nodes choose too.
    `data_waits`: for how many seconds the rank had waited for data by the end of a step, all in all.
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
    data = _data_ms(data_waits, range(first, last + 1), own)
    return RankPace(rank=rank, node=node, first_step=first, own_ms=tuple(own), step_ms=tuple(whole), data_ms=data)


def _data_ms(waits: Mapping[int, float], steps: range, own_ms: Sequence[float]) -> tuple[float, ...]:
    """Return what of own times was waiting for data; where not all steps are known, of each what it was on average of late."""
    if len(waits) < STEPS_NEEDED or max(waits.values()) <= 0.0:
        return ()
    if all(step in waits and step - 1 in waits for step in steps):
        grown_ms = [(waits[step] - waits[step - 1]) * 1e3 for step in steps]
    else:
        oldest, newest = min(waits), max(waits)
        grown_ms = [(waits[newest] - waits[oldest]) * 1e3 / max(newest - oldest, 1)] * len(steps)
    return tuple(round(min(max(grown, 0.0), own), 3) for grown, own in zip(grown_ms, own_ms, strict=True))


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


def timed_pace_of(phases: Sequence[StepPhases], *, rank: int, node: str, round_s: float = ROUND_S) -> TimedPace | None:
    """Return the pace of the newest steps that the GPU timed; None if it has timed none.

    `phases`: oldest first. Of many steps in a round one in 2, 4, ... is sent, so that what nodes send at different moments is of
    the same steps. Fewer than `STEPS_NEEDED` are sent too: they say that more will come.
    """
    known = {one.step: one for one in phases if math.isfinite(one.at_s + one.step_ms) and one.step > 0}
    if not known:
        return None
    newest = max(known)
    in_round = [step for step, one in known.items() if one.at_s > known[newest].at_s - round_s]
    stride = 1
    while (newest - min(in_round)) // stride >= MOST_STEPS:
        stride *= 2
    best = range(newest, newest + 1)
    while stride <= LARGEST_STRIDE and newest // stride > 0:
        last = newest // stride * stride
        first = last + stride
        while first - stride in known and (last - first) // stride < MOST_STEPS - 1:
            first -= stride
        found = range(first, last + 1, stride)
        best = found if len(found) > len(best) else best
        if len(best) >= STEPS_NEEDED:
            break
        stride *= 2
    sent = [known[step] for step in best]
    own, whole = (
        [round(length, 3) for length in row] for row in zip(*((o.own_ms, o.step_ms) for o in sent), strict=True)
    )
    return TimedPace(rank, node, best.start, best.step, tuple(own), tuple(whole))
