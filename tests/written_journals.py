"""Journals of jobs that never ran, written as a controller writes them: attempts that step, fail, stand still, begin again."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import Placement, Progress, VerdictDraft
from robust_run.launcher.operator.views.course import Course
from robust_run.launcher.operator.views.history import AttemptHistory
from robust_run.launcher.records.incident_record import incident_of
from robust_run.launcher.records.journal import JournalEntry
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
        self.ahead_s = AHEAD_S
        self.course, self.history = Course(), AttemptHistory()
        self.incidents: list[Incident] = []
        self.entries: list[JournalEntry] = []

    def line(self, word: e.Event | a.Action, after_s: float = 0.0) -> None:
        self.now_s += after_s
        is_action = isinstance(word, (a.StartAttempt, a.EndAttempt, a.RecordIncident, a.StandstillOver, a.Finish))
        what = "action" if is_action else "event"
        entry = JournalEntry(at=self.now_s, mono=self.now_s - AHEAD_S, **{what: word})  # type: ignore[arg-type]
        self.entries.append(entry)
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
