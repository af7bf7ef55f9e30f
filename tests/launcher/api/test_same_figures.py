"""The page, the status, the screen and the metrics say the same of the same journal: there is one definition of training."""

from __future__ import annotations

import msgspec
import pytest
from dashboards import job_view
from hypothesis import given
from hypothesis import strategies as st
from stories import ONE_NODE

from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import Placement, Progress, VerdictDraft
from robust_run.launcher.operator.gauges import SOURCES, GaugeFacts
from robust_run.launcher.operator.views.course import Course
from robust_run.launcher.operator.views.history import AttemptHistory
from robust_run.launcher.operator.views.live import with_course
from robust_run.launcher.operator.views.page_data import incident_page
from robust_run.launcher.operator.views.show import status_lines
from robust_run.launcher.records.incident_record import incident_of
from robust_run.launcher.records.journal import JournalEntry
from robust_run.report.effective import WINDOW_S, counts_steps
from robust_run.report.pages.ettr import ratio, spans_of, stretches_of
from robust_run.report.pages.types import Drawn
from robust_run.report.types import Incident

BEGAN_S = 1_790_000_000.0
#: The monotonic clock began so long before.
AHEAD_S = 1_789_990_000.0
DRAFT = VerdictDraft(
    kind="crash", ranks=(1,), nodes=("n",), confidence="high", rule="r", sentence="it died", exit_code=1
)


class Writing:
    """A journal that is being written, and its readers."""

    def __init__(self) -> None:
        self.now_s = BEGAN_S
        self.course, self.history = Course(), AttemptHistory()
        self.incidents: list[Incident] = []

    def line(self, word: e.Event | a.Action, after_s: float = 0.0) -> None:
        self.now_s += after_s
        is_action = isinstance(word, (a.StartAttempt, a.EndAttempt, a.RecordIncident, a.StandstillOver, a.Finish))
        what = "action" if is_action else "event"
        entry = JournalEntry(at=self.now_s, mono=self.now_s - AHEAD_S, **{what: word})  # type: ignore[arg-type]
        self.course.take(msgspec.json.encode(entry))
        self.history.take(entry)

    def attempt(self, number: int, draw: st.DrawFn) -> None:
        """An attempt of one node: some step, some fail, some are ended by an operator; some begin from a checkpoint."""
        takes = st.floats(0.1, 4000.0)
        place = Placement(node="n", first_rank=0, nproc=2, group_rank=0)
        self.line(
            a.StartAttempt(attempt=number, nodes=1, world_size=2, placements=(place,), address="h", port=1), draw(takes)
        )
        made_s = draw(st.none() | st.floats(BEGAN_S, self.now_s))
        self.line(e.AttemptStarted(attempt=number, node="n", pids=(1, 2), port=1, resumes_s=made_s), draw(takes))
        if draw(st.booleans()):
            self.line(e.FirstStep(attempt=number, node="n", at_s=self.now_s - AHEAD_S + 0.05), draw(takes))
        for _ in range(draw(st.integers(0, 2))):
            self.hang(number, draw)
        if draw(st.booleans()):
            return  # its controller was killed
        onset_s = self.now_s + draw(st.floats(0.01, 50.0))
        self.now_s = onset_s + draw(takes)
        if draw(st.booleans()):
            self.fail(onset_s)
        else:
            self.end(number)

    def hang(self, number: int, draw: st.DrawFn) -> None:
        """Ranks wait, and that is only reported; they go on or not, and what is told may be late."""
        self.now_s += draw(st.floats(0.0, 100.0))
        onset_s = self.now_s - AHEAD_S - draw(st.floats(0.0, 20.0))
        record = a.RecordIncident(
            attempt=number,
            symptom="hang",
            onset_at_s=onset_s,
            detected_at_s=self.now_s - AHEAD_S,
            verdict=msgspec.structs.replace(DRAFT, kind="hang"),
            action="report",
            reason="",
            stands_still=draw(st.booleans()),
        )
        self.line(record)
        self.incidents.append(incident_of(record, len(self.incidents) + 1, AHEAD_S, self.now_s))
        if draw(st.booleans()):
            self.now_s += draw(st.floats(0.0, 100.0))
            self.line(a.StandstillOver(attempt=number, at_s=self.now_s - AHEAD_S - draw(st.floats(0.0, 1.0))))

    def end(self, number: int) -> None:
        self.line(a.EndAttempt(attempt=number, signal=15))
        self.line(e.AttemptEnded(attempt=number, node="n", started_at_s=0.0, ranks=(), progress=Progress()), 0.5)

    def fail(self, onset_s: float) -> None:
        """The newest attempt fails, which is seen now."""
        self.now_s = max(self.now_s, onset_s)
        number = self.history.attempts[-1].number
        self.end(number)
        record = a.RecordIncident(
            attempt=number,
            symptom="exit",
            onset_at_s=onset_s - AHEAD_S,
            detected_at_s=self.now_s - AHEAD_S,
            verdict=DRAFT,
            action="relaunch",
            reason="",
        )
        self.line(record)
        moved_s = 0.02  # somebody set the clock between the line and the file
        self.incidents.append(incident_of(record, len(self.incidents) + 1, AHEAD_S + moved_s, self.now_s))


@st.composite
def journals(draw: st.DrawFn) -> Writing:
    writing = Writing()
    writing.line(n.JobStarted())
    for number in range(draw(st.integers(1, 4))):
        writing.attempt(number, draw)
    outcome = draw(st.sampled_from(("", "done", "failed")))
    if outcome:
        writing.line(a.Finish(exit_code=0, outcome=outcome), draw(st.floats(0.0, 10.0)))  # type: ignore[arg-type]
    writing.now_s += draw(st.floats(0.0, 5000.0))
    return writing


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
