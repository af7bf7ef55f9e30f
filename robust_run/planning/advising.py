"""A whole plan: its seeds, and those of what it is compared with, on all CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from robust_run.planning.advice import Advice, advise
from robust_run.planning.learning import Learned
from robust_run.planning.many import run_all
from robust_run.planning.results import SeedResult, Summary, summed_up
from robust_run.planning.words import Plan
from robust_run.planning.worker import Task

#: Differences are of the same faults, so few seeds show them.
ADVICE_SEEDS = 3


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What `robust plan --json` prints."""

    plan: Plan
    summary: Summary
    advice: Advice | None = None
    learned: Learned | None = None
    """What the plan's numbers were learned of; None: no runs were given."""


def planned(
    plan: Plan,
    seeds: Sequence[int],
    processes: int = 0,
    *,
    advises: bool = True,
    said: Callable[[float, int], object] = lambda *_: None,
    first: Callable[[Summary], object] = lambda _: None,
) -> Planned:
    """Simulate a plan, and with `advises` what it is compared with. `said` is called with how many of how many are done, `first`
    with what the plan itself comes to, as soon as that is known.

    Raises PlatformError: a process was ended.
    """
    tasks = [Task(plan, seed) for seed in seeds]
    summary = summed_up(plan, run_all(tasks, processes, lambda done: said(done, len(tasks))))
    first(summary)
    if not advises:
        return Planned(plan=plan, summary=summary)
    few = seeds[:ADVICE_SEEDS]

    def ask(plans: Sequence[Plan]) -> list[list[SeedResult]]:
        asked = [Task(each, seed) for each in plans for seed in few]
        found = run_all(asked, processes, lambda done: said(done, len(asked)))
        return [found[at : at + len(few)] for at in range(0, len(found), len(few))]

    return Planned(plan=plan, summary=summary, advice=advise(plan, summary, ask))
