"""Effective training time: which seconds of a job were training whose steps survived. Pure; the one definition of ETTR.

ByteRobust (arXiv 2509.16293, sections 2 and 8) measures the *effective training time ratio*: productive training time over the
wall-clock time of the job, cumulative, and over a sliding hour. Here the productive time of an attempt is the time

- from its first optimizer step (of a program whose steps are not counted: from when all its workers run),
- until the onset of what ended it, or the order that ended it where nothing failed,
- but for standstills: from the onset of a wait that was only reported until ranks went on,
- but for what was made again: what was trained after the checkpoint that a later attempt began from had been made.

Pages, `robust status`, `robust top` and metrics all rest on `stopped_s` and `kept_until`, and on what the journal says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

#: The sliding window.
WINDOW_S = 3600.0
#: A program whose workers ran for so long without an optimizer step makes none that can be counted.
UNCOUNTED_AFTER_S = 600.0


class Standstill(msgspec.Struct, frozen=True):
    """Time in which no rank of an attempt trained though nothing ended it: a wait that was only reported."""

    begin_s: float
    end_s: float | None
    """None: it goes on, or the attempt ended in it."""
    incident: int = 0
    """Number of the incident that reported it; 0: not known."""


class AttemptStretch(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of one attempt. Times are seconds since the epoch; None: not yet, never, or not known."""

    started_s: float | None = None
    """When all its workers ran."""
    first_step_s: float | None = None
    onset_s: float | None = None
    """When what ended it began, where something failed."""
    told_s: float | None = None
    """When it was told to end."""
    ended_s: float | None = None
    """When it was over."""
    resumed_s: float | None = None
    """When the checkpoint that it began from was made."""
    standstills: tuple[Standstill, ...] = ()
    """In order of time."""

    def began_s(self, *, counts_steps: bool) -> float | None:
        """Return when training began."""
        return self.first_step_s if counts_steps else self.started_s


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """Training time of a job, or of a part of its life."""

    trained: float
    """From first steps to onsets."""
    redone: float
    """What of that was made again."""

    @property
    def effective(self) -> float:
        """What survived."""
        return self.trained - self.redone


def stopped_s(*moments: float | None) -> float | None:
    """Return when training stopped: the first of an onset, an order to end and an end; None while it goes on."""
    return min((each for each in moments if each is not None), default=None)


def kept_until(resumed_s: Sequence[float | None]) -> list[float]:
    """Return, for each attempt, up to when its training was kept: later steps were made again by one of those after it.

    `resumed_s`: by attempt, when the checkpoint was made that it began from; None where that is not known.
    """
    kept: list[float] = []
    oldest_s = float("inf")
    for at_s in reversed(resumed_s):
        kept.append(oldest_s)
        oldest_s = min(oldest_s, at_s if at_s is not None else oldest_s)
    return kept[::-1]


def seconds(
    stretches: Sequence[AttemptStretch], since_s: float, until_s: float, *, counts_steps: bool = True
) -> Seconds:
    """Return the training time that falls between two moments."""
    trained_s = redone_s = 0.0
    for stretch, kept_s in zip(stretches, kept_until([each.resumed_s for each in stretches]), strict=True):
        began_s = stretch.began_s(counts_steps=counts_steps)
        if began_s is None:
            continue
        began_s = max(began_s, since_s)
        end_s = stopped_s(stretch.onset_s, stretch.told_s, stretch.ended_s)
        end_s = until_s if end_s is None else min(end_s, until_s)
        for work_began_s, work_ended_s in between(stretch.standstills, began_s, end_s):
            trained_s += work_ended_s - work_began_s
            redone_s += max(work_ended_s - max(work_began_s, kept_s), 0.0)
    return Seconds(trained=trained_s, redone=redone_s)


def between(standstills: Sequence[Standstill], begin_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a stretch of time that are in no standstill, in order."""
    for each in standstills:
        if each.begin_s > begin_s and begin_s < end_s:
            yield begin_s, min(each.begin_s, end_s)
        begin_s = max(begin_s, end_s if each.end_s is None else each.end_s)
    if begin_s < end_s:
        yield begin_s, end_s


def share(
    stretches: Sequence[AttemptStretch],
    begun_s: float,
    until_s: float,
    window_s: float = float("inf"),
    *,
    counts_steps: bool,
) -> float | None:
    """Return the effective share of a job's life, or of its last `window_s`; None before it has begun to train."""
    if until_s <= begun_s or not seconds(stretches, begun_s, until_s, counts_steps=counts_steps).trained:
        return None
    since_s = max(begun_s, until_s - window_s)
    return min(seconds(stretches, since_s, until_s, counts_steps=counts_steps).effective / (until_s - since_s), 1.0)


def counts_steps(stretches: Sequence[AttemptStretch], outcome: str, now_s: float) -> bool:
    """Return whether training begins with first steps: not of a program that worked for long, or to its end, without one.

    `outcome`: of a job that is over.
    """
    if any(each.first_step_s is not None for each in stretches):
        return True
    if outcome:
        return outcome not in ("done", "stopped")
    newest = stretches[-1] if stretches else None
    if newest is None or newest.started_s is None or newest.ended_s is not None:
        return True
    return now_s - newest.started_s < UNCOUNTED_AFTER_S
