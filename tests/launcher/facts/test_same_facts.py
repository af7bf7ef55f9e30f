"""Facts of a run and its status, page and metrics say the same of the same journal; and its parts sum up to the whole."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_journals import Writing, journals

from robust_run.fleet.words import Lost, RunFacts
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import JobSpec, OutputStreams, Placement, Std
from robust_run.launcher.operator.views.facts.build import Known, facts_of_run
from robust_run.launcher.operator.views.facts.fold import RunFold
from robust_run.launcher.records.journal import JournalHeader
from robust_run.report.pages.course import lost_of

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


@given(journals(), st.booleans())
def test_they_say_what_the_status_says_and_sum_up(writing: Writing, is_live: bool) -> None:
    facts, _ = facts_now(writing, is_live=is_live)
    course = writing.course
    assert facts.ettr == pytest.approx(course.ettr(facts.until_s), abs=1e-9)
    assert facts.effective_s == pytest.approx(course.effective_s(facts.until_s), abs=1e-6)
    assert facts.effective_s is not None
    lost_s = sum_of(facts.other) + sum(sum_of(each.lost) for each in facts.incidents)
    assert lost_s + facts.effective_s == pytest.approx(facts.until_s - facts.began_s, abs=1.0)


@given(journals())
def test_what_an_incident_cost_is_what_its_page_says(writing: Writing) -> None:
    """Of one after which training went on; the page of an older one goes on counting through the failures after it."""
    facts, fold = facts_now(writing, is_live=False)
    until_s = facts.until_s
    for each in facts.incidents:
        incident = fold.on_record.found[each.number]
        struck = fold.history.attempt(incident.attempt)
        if incident.action.name == "report":
            assert each.lost.end == each.lost.redo == 0.0
            assert sum_of(each.lost) <= lost_of(incident, struck, None, until_s, is_final=True).seconds + 1.0
        elif incident.resumed_s is not None:
            cost = lost_of(incident, struck, None, until_s)
            assert sum_of(each.lost) - each.lost.redo == pytest.approx(cost.seconds, abs=1.0)


def start(writing: Writing, number: int, resumes_s: float | None = None) -> None:
    """An attempt that is ordered, starts within a second and makes its first step ten seconds later."""
    place = Placement(node="n", first_rank=0, nproc=2, group_rank=0)
    order = a.StartAttempt(attempt=number, nodes=1, world_size=2, placements=(place,), address="h", port=1)
    writing.line(order, 1.0)
    started = e.AttemptStarted(attempt=number, node="n", pids=(1, 2), port=1, how=("fork",), resumes_s=resumes_s)
    writing.line(started, 1.0)
    writing.line(e.FirstStep(attempt=number, node="n", at_s=writing.now_s + 10.0 - writing.ahead_s), 10.0)


def test_steps_made_again_are_due_to_the_failure_that_lost_them() -> None:
    """The first failure loses 20 s; the second goes back past the first one's checkpoint, and loses what was left of it, too."""
    writing = Writing()
    writing.line(n.JobStarted())
    start(writing, 0)
    first_s = writing.now_s
    writing.now_s += 100.0
    writing.fail(writing.now_s)
    start(writing, 1, resumes_s=first_s + 80.0)
    writing.now_s += 50.0
    writing.fail(writing.now_s)
    start(writing, 2, resumes_s=first_s + 30.0)
    writing.line(a.Finish(exit_code=0, outcome="done"), 5.0)
    facts, _ = facts_now(writing, is_live=False)
    assert [each.lost.redo for each in facts.incidents] == pytest.approx([20.0, 50.0 + 50.0], abs=0.1)
    assert [each.lost.launch for each in facts.incidents] == pytest.approx([1.0, 1.0], abs=0.1)
    assert [each.lost.load for each in facts.incidents] == pytest.approx([10.0, 10.0], abs=0.1)
    assert [(each.ready_s, each.first_step_s, each.began) for each in facts.starts] == [
        (pytest.approx(1.0), pytest.approx(10.0), "warm")
    ] * 3
    assert facts.other.load == pytest.approx(10.0), "the first start"


def test_a_job_that_a_scheduler_starts_again_is_not_over() -> None:
    """Its first end is on record, and it goes on: until it ends again it has no outcome, and its time goes on."""
    writing = Writing()
    writing.line(n.JobStarted())
    start(writing, 0)
    writing.line(a.Finish(exit_code=0, outcome="stopped"), 100.0)
    writing.line(n.ControllerResumed(term=2, restart=1), 1000.0)
    start(writing, 1)
    fold, course = folded(writing), writing.course
    assert (fold.history.outcome, fold.history.finished_s, course.outcome, course.over_s) == ("", None, "", None)
    assert course.until_s(writing.now_s + 50.0, alive=True) == writing.now_s + 50.0
    writing.line(a.Finish(exit_code=0, outcome="done"), 100.0)
    assert writing.course.until_s(9e9, alive=True) == writing.now_s
