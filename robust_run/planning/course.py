"""What a simulated job did, and what of its time was lost to what. Pure.

One definition of effective time for plans and for jobs: `report.effective`. Here the rest of the time is divided among phases and
causes, so that all parts sum up to the whole.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import msgspec

from robust_run.planning.words import Saving, Times
from robust_run.report.effective import WINDOW_S, AttemptStretch, kept_until, seconds, stopped_s

PHASES = ("detect", "end", "check", "wait", "queue", "launch", "load", "redo", "save", "slow")
"""detect: from the onset of a fault to the order to end the attempt. end: until it is over. check: nodes are checked. wait:
for nodes where too few are left. queue: the job had ended; people, and the scheduler. launch: until workers run. load: groups,
and the checkpoint. redo: trained again. save: training stood still for a save. slow: a node was slower than its peers."""


class AttemptCourse(msgspec.Struct, kw_only=True):
    """One attempt of a simulated job. Times are seconds since the job's beginning."""

    opened_s: float
    queued_s: float = 0.0
    """Of the time before it: the job had ended."""
    checked_s: float = 0.0
    """Of the time before it: nodes were checked."""
    started_s: float | None = None
    first_step_s: float | None = None
    onset_s: float | None = None
    told_s: float | None = None
    ended_s: float | None = None
    resumed_s: float | None = None
    """When the state was current that it began from."""
    source: str = ""
    slow: float = 0.0
    """So many seconds of full speed were lost to slow nodes."""
    cause: str = ""
    """Name of the fault that ended it; empty: none did."""
    action: str = ""
    """What was done about it."""

    @property
    def stopped_s(self) -> float | None:
        """When training stopped."""
        return stopped_s(self.onset_s, self.told_s, self.ended_s)

    def stretch(self) -> AttemptStretch:
        """Return it as effective time is reckoned."""
        return AttemptStretch(
            started_s=self.started_s,
            first_step_s=self.first_step_s,
            onset_s=self.onset_s,
            told_s=self.told_s,
            ended_s=self.ended_s,
            resumed_s=self.resumed_s,
        )


class Course(msgspec.Struct, kw_only=True):
    """A simulated job."""

    seed: int
    until_s: float
    attempts: list[AttemptCourse] = []
    faults: dict[str, int] = {}
    """By kind: how many struck the job."""
    actions: dict[str, int] = {}
    """Incidents by what was done: relaunch, evict, diagnose, rollback, stop, report."""
    ladder: dict[str, int] = {}
    """Decisions of the ladder, by rung."""
    evicted: dict[str, int] = {}
    """Evictions, by who decided them."""
    ended: int = 0
    """How often the job ended and was queued again."""
    ended_for: dict[str, int] = {}
    """The same by the core's reason and the fault."""
    out_most: int = 0
    """Most nodes that were out of the job at once."""
    out_hours: list[float] = []
    """Hours in which exactly so many nodes were out, by count."""
    events: int = 0
    """That the core was told."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the time of one seed, as shares of the whole."""

    ettr: float
    """Effective training time, as `report.effective` has it."""
    goodput: float
    """The same without what saving and slow nodes take."""
    worst_hour: float
    """ETTR of the worst hour after the first."""
    by_phase: dict[str, float]
    by_cause: dict[str, float]
    by_both: dict[str, dict[str, float]]
    """By phase, then by cause."""
    longest_s: float
    """The longest time without training after the first step, and until the end; the whole time, if there was no step."""


def lost(course: Course, saving: Saving, times: Times) -> Lost:
    """Divide the time of a job among phases, and among the kinds of faults that began what was lost."""
    phases, causes = dict.fromkeys(PHASES, 0.0), dict[str, float]()
    both: dict[str, dict[str, float]] = {phase: {} for phase in PHASES}
    until_s, before_s, cause = course.until_s, 0.0, "start"
    stretches = [each.stretch() for each in course.attempts]
    kept = kept_until([each.resumed_s for each in stretches])
    share_storage, share_memory = saving_shares(saving, times)
    work: list[tuple[float, float]] = []

    def lose(phase: str, seconds_: float, of: str) -> None:
        phases[phase] += seconds_
        causes[of] = causes.get(of, 0.0) + seconds_
        both[phase][of] = both[phase].get(of, 0.0) + seconds_

    for attempt, kept_s in zip(course.attempts, kept, strict=True):
        gap_s = min(attempt.opened_s, until_s) - before_s
        checked_s, queued_s = min(attempt.checked_s, gap_s), min(attempt.queued_s, gap_s)
        lose("check", checked_s, cause)
        lose("queue", queued_s, cause)
        lose("wait", max(gap_s - checked_s - queued_s, 0.0), cause)
        end_s = _at(attempt.stopped_s, until_s)
        started_s, first_s = (min(_at(each, until_s), end_s) for each in (attempt.started_s, attempt.first_step_s))
        lose("launch", max(started_s - attempt.opened_s, 0.0), cause)
        lose("load", max(first_s - started_s, 0.0), cause)
        own = attempt.cause or (cause if attempt.started_s is None else "other")
        kept_to_s = min(max(kept_s, first_s), end_s)
        lose("redo", end_s - kept_to_s, own)
        lose("save", (kept_to_s - first_s) * share_storage, "saving")
        lose("save", (kept_to_s - first_s) * share_memory, "saving_memory")
        lose("slow", min(attempt.slow, kept_to_s - first_s), "slow")
        if kept_to_s > first_s:
            work.append((first_s, kept_to_s))
        lose("detect", max(_at(attempt.told_s, until_s) - end_s, 0.0), own)
        before_s = _at(attempt.ended_s, until_s)
        lose("end", max(before_s - max(_at(attempt.told_s, until_s), end_s), 0.0), own)
        cause = own
    lose("wait", max(until_s - before_s, 0.0), cause)
    effective_s = seconds(stretches, 0.0, until_s).effective
    return Lost(
        ettr=effective_s / until_s,
        goodput=(effective_s - phases["save"] - phases["slow"]) / until_s,
        worst_hour=worst_window(work, WINDOW_S, until_s),
        by_phase={name: value / until_s for name, value in phases.items()},
        by_cause={name: value / until_s for name, value in causes.items()},
        by_both={phase: {name: value / until_s for name, value in of.items() if value} for phase, of in both.items()},
        longest_s=_longest_stop(work, until_s),
    )


def _longest_stop(work: Sequence[tuple[float, float]], until_s: float) -> float:
    if not work:
        return until_s
    return max(after - before for (_, before), (after, _) in itertools.pairwise([*work, (until_s, until_s)]))


def saving_shares(saving: Saving, times: Times) -> tuple[float, float]:
    """Return what share of its time a job stands still to save to storage, and to memory."""
    storage = saving.blocks_s / (saving.every_s + saving.blocks_s)
    if not saving.memory_steps:
        return storage, 0.0
    every_s = saving.memory_steps * times.step
    return storage, min(saving.memory_blocks_s / (every_s + saving.memory_blocks_s), 1.0 - storage)


def _at(moment_s: float | None, until_s: float) -> float:
    return until_s if moment_s is None else min(moment_s, until_s)


def worst_window(work: Sequence[tuple[float, float]], window_s: float, until_s: float) -> float:
    """Return the least share of work in any window after the first: one that begins or ends where work does, as the share is
    linear in between."""
    if until_s < 2 * window_s or not work:
        return sum(end - begin for begin, end in work) / until_s
    begins = [begin for begin, _ in work]
    sums = [0.0]
    for begin, end in work:
        sums.append(sums[-1] + end - begin)

    def until(at_s: float) -> float:
        index = bisect.bisect(begins, at_s)
        if not index:
            return 0.0
        return sums[index - 1] + min(at_s, work[index - 1][1]) - begins[index - 1]

    edges = [edge for pair in work for edge in pair]
    firsts = {min(max(first, window_s), until_s - window_s) for edge in edges for first in (edge, edge - window_s)}
    return min((until(first + window_s) - until(first)) / window_s for first in firsts)
