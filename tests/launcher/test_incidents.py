"""The incidents of a run outlive its launcher, whatever moment that dies at."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.launcher.actions import RecordIncident
from robust_run.launcher.events import Tick
from robust_run.launcher.incidents import IncidentBook
from robust_run.launcher.journal import Journal
from robust_run.launcher.run_directory import RunDirectory
from robust_run.launcher.types import JobSpec, Std, Streams, VerdictDraft
from robust_run.report import incident as incident_file

SPEC = JobSpec(
    argv=("python", "train.py"),
    script="train.py",
    is_python=True,
    nproc=2,
    run_id="r",
    rdzv_id="r",
    log_dir="/tmp",
    streams=Streams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
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


def book_of(path: Path) -> IncidentBook:
    return IncidentBook(SystemClock(), RunDirectory(str(path), str(path)), lambda _: None, fail)


def test_an_incident_whose_file_was_never_written_is_made_again_from_the_journal(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"), SystemClock(), fail)
    journal.open_with(SPEC, "here")
    lost = book_of(tmp_path)
    for attempt in (0, 1):
        journal.event(Tick(), 92.0, [action(attempt)])
        lost.record(action(attempt), lambda _delay_s, _call: None)  # the second never comes to be written
    assert (tmp_path / "incidents" / "0001.json").exists() and not (tmp_path / "incidents" / "0002.json").exists()

    entries = journal.past()
    found = book_of(tmp_path)
    found.load(entries)
    assert [each.verdict.sentence for each in found.incidents] == ["rank 1 died (0)", "rank 1 died (1)"]
    written = incident_file.read(str(tmp_path / "incidents" / "0002.json"))
    assert written == found.incidents[1]
    assert written.decided_s == entries[-1].at
    assert written.decided_s - written.onset_s == pytest.approx(2.0, abs=1e-3)
