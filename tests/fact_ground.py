"""Facts of journals that were made up, and sums of what they say."""

from __future__ import annotations

import msgspec
from written_journals import Writing

from robust_run.fleet.words import Lost, RunFacts
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model.job import JobSpec, OutputStreams, Placement, Std
from robust_run.launcher.operator.views.facts.build import Known, facts_of_run
from robust_run.launcher.operator.views.facts.fold import RunFold
from robust_run.launcher.records.journal import JournalHeader

HEADER = JournalHeader(
    schema=1,
    version="0.1.0",
    host="n",
    pid=1,
    job=JobSpec(
        argv=("train.py",),
        script="train.py",
        is_python=True,
        nproc=2,
        run_id="r",
        rdzv_id="r",
        log_dir=None,
        streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
    ),
)


def sum_of(lost: Lost) -> float:
    return float(sum(msgspec.structs.astuple(lost)))


def folded(writing: Writing) -> RunFold:
    fold = RunFold(HEADER)
    for entry in writing.entries:
        fold.take(entry)
    return fold


def facts_now(writing: Writing, *, is_live: bool) -> tuple[RunFacts, RunFold]:
    fold = folded(writing)
    until_s = writing.course.until_s(writing.now_s, alive=is_live)
    state = fold.history.outcome or ("live" if is_live else "lost")
    known = Known(state=state, until_s=until_s, outcome=fold.history.outcome)  # type: ignore[arg-type]
    return facts_of_run(fold, list(fold.on_record.found.values()), known), fold


def lost_s(facts: RunFacts) -> float:
    """Return what all that is kept of a run says was not effective."""
    return sum_of(facts.other) + sum(sum_of(each.lost) for each in facts.incidents)


def start(writing: Writing, number: int, resumes_s: float | None = None) -> None:
    """An attempt that is ordered, starts within a second and makes its first step ten seconds later."""
    place = Placement(node="n", first_rank=0, nproc=2, group_rank=0)
    order = a.StartAttempt(attempt=number, nodes=1, world_size=2, placements=(place,), address="h", port=1)
    writing.line(order, 1.0)
    started = e.AttemptStarted(attempt=number, node="n", pids=(1, 2), port=1, how=("fork",), resumes_s=resumes_s)
    writing.line(started, 1.0)
    writing.line(e.FirstStep(attempt=number, node="n", at_s=writing.now_s + 10.0 - writing.ahead_s), 10.0)
