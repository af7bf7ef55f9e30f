"""One incident that cannot be read hides no other, and the journal still says what it was."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from robust_run.clock import SystemClock
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.events import Tick
from robust_run.launcher.model.job import JobSpec, OutputStreams, Std, VerdictDraft
from robust_run.launcher.operator.pages.report_pages import Pages, write_report
from robust_run.launcher.operator.reading.incident_reading import read_incidents
from robust_run.launcher.operator.reading.which import Subject
from robust_run.launcher.operator.views.life import JobLife
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import Journal
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.report.pages.types import Accepts

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


def run_of_three(path: Path) -> Path:
    """Return a run directory with three incidents."""
    journal = Journal(str(path / "journal.jsonl"), SystemClock(), fail)
    journal.open_with(SPEC, "here")
    book = IncidentBook(SystemClock(), RunDirectory(str(path), str(path)), lambda _: None, fail)
    for attempt in range(3):
        verdict = VerdictDraft(
            kind="crash",
            ranks=(1,),
            nodes=("gpu-1",),
            confidence="high",
            rule="r",
            sentence=f"rank 1 died ({attempt})",
            exit_code=1,
        )
        action = RecordIncident(
            attempt=attempt,
            symptom="worker_failed",
            onset_at_s=90.0,
            detected_at_s=91.0,
            verdict=verdict,
            action="stop" if attempt == 2 else "relaunch",
            reason="",
        )
        journal.event(Tick(), 92.0, [action])
        book.record(action, lambda _delay_s, _call: None)
        book.flush()
    journal.close()
    book.pages.finish(None)  # type: ignore[arg-type]  # no page of the job is asked for here
    return path / "incidents"


def test_an_unreadable_one_is_taken_from_the_journal_and_the_later_ones_stay(tmp_path: Path) -> None:
    folder = run_of_three(tmp_path)
    (folder / "0002.json").write_text("{")
    found = read_incidents(str(tmp_path))
    assert [each.id for each in found.incidents] == [1, 2, 3]
    assert found.incidents[1].verdict.sentence == "rank 1 died (1)"
    assert "1 incident unreadable (2); the journal has" in found.words()


def test_what_the_journal_lacks_too_is_left_out_and_said(tmp_path: Path) -> None:
    folder = run_of_three(tmp_path)
    (folder / "0002.json").write_text("{")
    (tmp_path / "journal.jsonl").write_text("")
    found = read_incidents(str(tmp_path))
    assert [each.id for each in found.incidents] == [1, 3]
    assert "1 left out" in found.words()


def test_pages_and_top_go_on_and_say_so(tmp_path: Path) -> None:
    folder = run_of_three(tmp_path)
    (folder / "0001.json").write_text("[]")
    (folder / "0003.json").unlink()
    written = write_report(str(tmp_path), JobLife(life="gone"))
    assert [Path(each).name for each in written.incidents] == ["0001.html", "0002.html", "0003.html"]
    assert "2 incidents unreadable" in Path(written.report).read_text()
    view = Subject(str(tmp_path), None).live()
    assert any("1 incident unreadable" in each for each in view.findings)


def test_times_that_cannot_be_are_not_believed(tmp_path: Path) -> None:
    folder = run_of_three(tmp_path)
    text = (folder / "0002.json").read_text()
    (folder / "0002.json").write_text(re.sub(r'"onset_s": [0-9.e+]+', '"onset_s": 1e308', text))
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write('{"at": 1e308, "mono": 1.0}\n')
    assert "1 incident unreadable (2)" in write_report(str(tmp_path), JobLife(life="gone")).unread


def test_of_more_than_are_looked_at_the_newest_are_shown(tmp_path: Path) -> None:
    """Whoever asks for the newest failure of a long job is not told of one of weeks ago."""
    run_of_three(tmp_path)
    found = read_incidents(str(tmp_path), recorded=3, most=2)
    assert [each.id for each in found.incidents] == [2, 3]
    assert found.words() == "the first 1 incidents are not shown"
    assert read_incidents(str(tmp_path), recorded=3, most=3).words() == ""


def test_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    folder = run_of_three(tmp_path)
    known = {each.id: each for each in read_incidents(str(tmp_path)).incidents}
    (folder / "0001.json").write_text("{")
    (tmp_path / "journal.jsonl").write_text("")
    found = read_incidents(str(tmp_path), known={1: known[1]})
    assert found.incidents == (known[1], known[2], known[3])


def test_a_page_of_one_incident_does_not_read_all_others_anew(tmp_path: Path) -> None:
    """Else a job that fails for the thousandth time reads a thousand files for it."""
    folder = run_of_three(tmp_path)
    opened: list[str] = []
    listening = True

    def listen(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event == "open" and str(arguments[0]).startswith(str(folder)):
            opened.append(Path(str(arguments[0])).name)

    pages = Pages(str(tmp_path))
    pages.write_incident(2, lambda _: Accepts())
    sys.addaudithook(listen)
    pages.write_incident(3, lambda _: Accepts())
    listening = False
    assert "0003.json" in opened
    assert not {"0001.json", "0002.json"} & set(opened)
