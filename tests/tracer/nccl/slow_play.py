"""Plays a case of the model to the rules, as the agents and the controller of a job would, and says what came of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tracer.nccl.slow_run import Case, Look

from robust_run.tracer.nccl.sampling import sampled_ranks
from robust_run.tracer.nccl.slowness import EVERYBODY, WINDOW_S, Slowness
from robust_run.tracer.nccl.work import RankWork, SlowFault

#: Within so long what is asked for reaches all agents.
REACHES_S = 0.5
#: Windows of which agents remember what ranks did.
REMEMBERED = 240


@dataclass
class Heard:
    """What was said of a case."""

    case: Case
    fault: SlowFault | None = None
    """The first that was told."""
    at_s: float = 0.0
    told: int = 0
    """Things that were told, each once."""
    windows: int = 0
    everybody: int = 0
    """Windows in which all ranks were looked at."""

    @property
    def is_early(self) -> bool:
        """Whether something was told before anything was wrong."""
        return self.fault is not None and (self.case.strikes_s is None or self.at_s < self.case.strikes_s)

    @property
    def after_s(self) -> float | None:
        """How long after the fault struck it was told."""
        return None if self.fault is None or self.case.strikes_s is None else self.at_s - self.case.strikes_s

    @property
    def is_right(self) -> bool:
        """Whether what was told first names the component at fault and no other."""
        told, expected = self.fault, self.case.expected
        if told is None or expected is None or self.is_early:
            return False
        return told.component in expected.components and set(told.ranks) <= expected.ranks


def play(case: Case) -> Heard:
    """Look at the job window after window, at all ranks where that is wanted; stop at a verdict about a fault.

    What is asked for reaches agents during the next window. They take a first reading then, and tell of the rest of that window
    and of the past at its end.
    """
    job, heard, slowness = case.job, Heard(case), Slowness()
    remembered: deque[Look] = deque(maxlen=REMEMBERED)
    last: tuple[str, tuple[int, ...]] | None = None
    first, until = 0, -1  # windows in which all are looked at
    for number, look in enumerate(case.life.looks(case.steps, WINDOW_S, case.ends_s)):
        remembered.append(look)
        sampled = sampled_ranks(job.ranks, job.per_node, number // 120)
        everybody = first <= number <= until
        past = [_all_of(remembered, rank) for rank in range(job.ranks)] if number == first - 1 else []
        works = [look.work(rank) for rank in (range(job.ranks) if everybody else sampled)]
        if past:
            works += [look.latter(REACHES_S).work(rank) for rank in range(job.ranks) if rank not in sampled]
        slowness = slowness.hear(works, past)
        if slowness.asks:
            first, until = (number + 2 if number > until else first), number + 1 + EVERYBODY
        heard.windows += 1
        heard.everybody += everybody
        fault = slowness.fault()
        if fault is not None and (fault.component, fault.ranks) != last:
            last = fault.component, fault.ranks
            heard.told += 1
            if heard.fault is None:
                heard.fault, heard.at_s = fault, look.at_s
            if case.expected is not None:
                break
    return heard


def _all_of(looks: deque[Look], rank: int) -> RankWork:
    nodes = range(looks[-1].job.nodes)
    parts = [[part for look in looks for part in look.parts_by_node[node]] for node in nodes]
    return Look(looks[-1].at_s, parts, WINDOW_S * len(looks), looks[-1].job).work(rank)
