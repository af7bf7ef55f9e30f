"""The incidents of a run outlive its launcher, whatever moment that dies at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from robust_run.clock import SystemClock
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.check_events import Decided, RungName
from robust_run.launcher.model.events import FirstStep, Tick
from robust_run.launcher.model.job import JobSpec, OutputStreams, Std, VerdictDraft
from robust_run.launcher.model.resume_events import ResumeChosen
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import Journal, JournalEntry
from robust_run.launcher.records.journal_reading import past_of as past_of_journal
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.report.files import incident as incident_file

SPEC = JobSpec(
    argv=("python", "train.py"),
    script="train.py",
    is_python=True,
    nproc=2,
    run_id="r",
    rdzv_id="r",
    log_dir="/tmp",
    streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
)


def fail(*what: object) -> None:
    raise AssertionError(what)


def action(attempt: int) -> RecordIncident:
    verdict = VerdictDraft(
        kind="crash",
        ranks=(1,),
        nodes=("gpu-1",),
        confidence="high",
        rule="r",
        sentence=f"rank 1 died ({attempt})",
        exit_code=1,
    )
    return RecordIncident(
        attempt=attempt,
        symptom="worker_failed",
        onset_at_s=90.0,
        detected_at_s=91.0,
        verdict=verdict,
        action="relaunch",
        reason="",
    )


class LaterClock(SystemClock):
    """The wall clock, so many seconds ahead."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def unix_s(self) -> float:
        return super().unix_s() + self._ahead_s


def book_of(path: Path, say: Callable[[str], None] = lambda _: None, ahead_s: float = 0.0) -> IncidentBook:
    return IncidentBook(LaterClock(ahead_s), RunDirectory(str(path), str(path)), say, fail)


def test_an_incident_whose_file_was_never_written_is_made_again_from_the_journal(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"), SystemClock(), fail)
    journal.open_with(SPEC, "here")
    lost = book_of(tmp_path)
    for attempt in (0, 1):
        journal.event(Tick(), 92.0, [action(attempt)])
        lost.record(action(attempt), lambda _delay_s, _call: None)  # the second never comes to be written
    assert (tmp_path / "incidents" / "0001.json").exists() and not (tmp_path / "incidents" / "0002.json").exists()

    entries = past_of_journal(journal)
    found = book_of(tmp_path)
    found.load(entries)
    assert [each.verdict.sentence for each in found.incidents] == ["rank 1 died (0)", "rank 1 died (1)"]
    written = incident_file.read(str(tmp_path / "incidents" / "0002.json"))
    assert written == found.incidents[1]
    assert written.decided_s == entries[-1].at
    assert written.decided_s - written.onset_s == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("rung", get_args(RungName))
def test_what_the_ladder_decides_is_said_whatever_rung_it_is(tmp_path: Path, rung: RungName) -> None:
    said: list[str] = []
    decision = Decided(attempt=1, number=1, episode=1, rung=rung, rule="a_rule", sentence="because", nodes=("gpu-1",))
    book_of(tmp_path, said.append).decided(decision)
    assert [line.endswith(": because [a_rule]") for line in said] == [True]


def past_of(
    tmp_path: Path, *, goes_on_s: float = 0.0, kind: str = "relaunch", stepped: bool = False
) -> list[JournalEntry]:
    """What a controller has left that went on for so long after an incident."""
    journal = Journal(str(tmp_path / "journal.jsonl"), SystemClock(), fail)
    journal.open_with(SPEC, "here")
    journal.event(Tick(), 92.0, [msgspec.structs.replace(action(0), action=kind)])  # type: ignore[arg-type]
    if stepped:
        journal.event(FirstStep(attempt=1, node="n", at_s=95.0), 95.0)
    journal.event(Tick(), 99.0)
    entries = past_of_journal(journal)
    return [*entries[:-1], msgspec.structs.replace(entries[-1], at=entries[-1].at + goes_on_s)]


def test_an_incident_that_its_controller_may_not_have_said_is_said_by_the_next_once(tmp_path: Path) -> None:
    said: list[str] = []
    book = book_of(tmp_path, said.append)
    book.load(past_of(tmp_path))
    assert said == [], "the line that says who is back comes first"
    book.say_again()
    book.say_again()
    (line,) = said
    assert line.startswith("attempt 0: rank 1 died (0)")


@pytest.mark.parametrize(
    ("past", "ahead_s"),
    [({"goes_on_s": 30.0}, 40.0), ({}, 3600.0), ({"kind": "stop"}, 0.0)],
    ids=["said", "old", "end"],
)
def test_an_incident_that_was_said_or_is_no_news_is_not_said_again(
    tmp_path: Path, past: dict[str, Any], ahead_s: float
) -> None:
    said: list[str] = []
    book = book_of(tmp_path, said.append, ahead_s)
    book.load(past_of(tmp_path, **past))
    book.say_again()
    assert said == []


@pytest.mark.parametrize("stepped", [False, True])
def test_what_follows_an_incident_is_noted_by_the_next_controller_too(tmp_path: Path, stepped: bool) -> None:
    book = book_of(tmp_path)
    book.load(past_of(tmp_path, stepped=stepped))
    onset_s = book.incidents[-1].onset_s
    assert book.failed_unix_s(1) == (None if stepped else onset_s) and book.failed_unix_s(2) is None
    book.resume_chosen(ResumeChosen(attempt=1, source="storage", step=5), lambda _delay_s, _call: None)
    assert (book.incidents[-1].resume is not None) == (not stepped)
