"""The page, the status, the screen and the metrics say the same of the same journal: there is one definition of training."""

from __future__ import annotations

import msgspec
import pytest
from dashboards import job_view
from hypothesis import given
from stories import ONE_NODE
from written_journals import BEGAN_S, Writing, journals

from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import Placement
from robust_run.launcher.operator.gauges import SOURCES, GaugeFacts
from robust_run.launcher.operator.views.live import with_course
from robust_run.launcher.operator.views.page_data import incident_page
from robust_run.launcher.operator.views.show import status_lines
from robust_run.report.effective import WINDOW_S, counts_steps
from robust_run.report.pages.ettr import ratio, spans_of, stretches_of
from robust_run.report.pages.types import Drawn


@given(journals())
def test_all_who_show_it_say_the_same(writing: Writing) -> None:
    course, history = writing.course, writing.history
    until_s = course.until_s(writing.now_s, alive=True)
    assert until_s == (history.finished_s if history.finished_s is not None else writing.now_s)
    counts = counts_steps(stretches_of(history.attempts, writing.incidents), course.outcome, until_s)
    assert history.begun_s is not None
    spans = spans_of(history.attempts, writing.incidents, history.begun_s, until_s, counts_steps=counts)
    on_page = ratio(spans), ratio(spans, since_s=until_s - WINDOW_S) if until_s > BEGAN_S + WINDOW_S else ratio(spans)

    job = with_course(msgspec.structs.replace(job_view(), started_unix_s=BEGAN_S, now_unix_s=writing.now_s), course)
    assert (job.ettr, job.ettr_hour) == (pytest.approx(on_page[0], abs=1e-6), pytest.approx(on_page[1], abs=1e-6))
    if job.ettr is None:
        return
    assert f"{job.ettr:.1%} of the time since the start" in "\n".join(status_lines(job))
    numbers = {
        family.name: family.samples[0].value
        for family in (source(GaugeFacts(job=job, course=course)) for source in SOURCES)
        if family.samples
    }
    assert numbers["ettr_ratio"] == job.ettr
    effective_s = numbers["training_seconds_total"] - numbers["training_in_vain_seconds_total"]
    assert effective_s / (until_s - BEGAN_S) == pytest.approx(job.ettr, abs=1e-6)


def test_of_a_program_whose_steps_are_not_counted_a_failure_costs_until_its_workers_are_up_again() -> None:
    writing = Writing()
    writing.line(n.JobStarted())
    place = Placement(node="n", first_rank=0, nproc=2, group_rank=0)
    for number in range(2):
        order = a.StartAttempt(attempt=number, nodes=1, world_size=2, placements=(place,), address="h", port=1)
        writing.line(order, 1.0)
        writing.line(e.AttemptStarted(attempt=number, node="n", pids=(1, 2), port=1), 1.0)
        if number == 0:
            writing.fail(writing.now_s + 100.0)
    writing.line(a.Finish(exit_code=0, outcome="done"), 500.0)
    facts = JobFacts(
        run_id="r", script="p", host="h", pid=1, version="", started_unix_s=BEGAN_S, run_directory="", policy=ONE_NODE
    )
    page = incident_page(facts, writing.history, writing.incidents, 1, None, Drawn(at_s=writing.now_s))
    assert page.lost is not None
    assert page.lost.is_over
    assert page.lost.seconds == pytest.approx(0.5 + 1.0 + 1.0, abs=0.1), (
        "the end of the old one, the order, the workers"
    )
