"""A journal that is empty, none at all, or not complete cannot show that nothing happened, and no command says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robust_run.launcher.model.actions import Finish
from robust_run.launcher.operator.reading.journal_doubt import JournalSeen, doubt
from robust_run.launcher.records import outcome
from robust_run.report.files import incident as incident_file
from tests.launcher.api.test_trace_commands import happened

Robust = Callable[..., subprocess.CompletedProcess[str]]
Damage = Callable[[bytes], bytes]

NOTHING = ("there was no incident", "nothing has gone wrong", "no incident so far")
CLAIMS = [["why"], ["incident"], ["explain"], ["explain", "1"], ["incident", "1"]]


@pytest.fixture
def journal(make_controller: Callable[..., Any]) -> Path:
    """A journal of a run without an incident, whose controller is gone."""
    return Path(make_controller().start().journal_path)


@pytest.fixture
def with_incident(make_controller: Callable[..., Any], run_directory: Path) -> Path:
    """A journal with an incident that has a file, too."""
    controller = make_controller().start()
    happened(SimpleNamespace(controller=controller))
    incident_file.write(str(run_directory / "incidents" / "0001.json"), controller.incidents()[0])
    return Path(controller.journal_path)


def empty(_: bytes) -> bytes:
    return b""


def noise(_: bytes) -> bytes:
    return bytes(range(256)) * 4


def torn_in_the_header(content: bytes) -> bytes:
    return content[:40]


def cut_after_three_lines(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:3])


def cut_in_a_line(content: bytes) -> bytes:
    return cut_after_three_lines(content) + b'{"at": 1, "mo'


def told(result: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in result.stderr
    assert not any(claim in result.stdout + result.stderr for claim in NOTHING)
    return result.stderr


@pytest.mark.parametrize("words", CLAIMS)
@pytest.mark.parametrize("damage", [empty, noise, torn_in_the_header, cut_in_a_line])
def test_no_command_says_that_nothing_happened(
    journal: Path, robust: Robust, run_directory: Path, damage: Damage, words: list[str]
) -> None:
    journal.write_bytes(damage(journal.read_bytes()))
    result = robust(*words, str(run_directory))
    assert (result.returncode > 0, result.stdout) == (True, "")
    assert "what happened is not known" in told(result)


@pytest.mark.parametrize("words", CLAIMS)
def test_where_the_disk_was_full_that_is_known(
    journal: Path, robust: Robust, run_directory: Path, words: list[str]
) -> None:
    assert outcome.leave(str(run_directory), Finish(outcome="failed", exit_code=1, reason=""))
    assert "is not complete (not all of it could be written)" in told(robust(*words, str(run_directory)))


@pytest.mark.parametrize("damage", [empty, noise, torn_in_the_header, cut_after_three_lines, cut_in_a_line])
def test_incidents_that_have_files_are_shown_nevertheless(
    with_incident: Path, robust: Robust, run_directory: Path, damage: Damage
) -> None:
    with_incident.write_bytes(damage(with_incident.read_bytes()))
    for words in CLAIMS:
        result = robust(*words, str(run_directory))
        assert result.returncode == 0, result
        assert "rank 1 never joined all_reduce #4" in result.stdout
        told(result)
    explained = robust("explain", "1")
    assert "this is from its file" in explained.stdout
    assert "no diagnosis was made" not in explained.stdout, "nobody knows"
    assert "not a journal" in explained.stderr or "not complete" in explained.stderr
    assert json.loads(robust("explain", "--json").stdout)["is_whole"] is False
    assert "2" in told(robust("explain", "2"))


def test_an_incident_is_not_taken_for_an_earlier_one_that_the_journal_lost(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    controller = make_controller().start()
    happened(SimpleNamespace(controller=controller))
    first = controller.incidents()[0]
    controller.lose(2)
    path = Path(controller.journal_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "never joined" not in line))
    for number, each in enumerate(controller.incidents(), start=1):
        incident_file.write(str(run_directory / "incidents" / f"{number:04d}.json"), each)
    assert first.verdict.sentence in robust("explain", "1").stdout
    assert "gpu-2" in robust("explain", "2").stdout


@pytest.mark.parametrize("damage", [empty, noise, torn_in_the_header])
@pytest.mark.parametrize("words", [["events"], ["events", "--json"], ["events", "-n", "3"], ["events", "-f"]])
def test_events_of_no_journal_are_refused(
    journal: Path, robust: Robust, run_directory: Path, damage: Damage, words: list[str]
) -> None:
    journal.write_bytes(damage(journal.read_bytes()))
    result = robust(*words, str(run_directory))
    assert (result.returncode, result.stdout) == (2, "")
    assert "is not a journal of robust-run" in result.stderr


def test_events_of_a_journal_that_is_not_complete_are_shown_with_a_warning(journal: Path, robust: Robust) -> None:
    assert robust("events").stderr == ""
    journal.write_bytes(cut_in_a_line(journal.read_bytes()))
    result = robust("events", "--json")
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 2)
    assert "is not complete (1 line is cut short)" in result.stderr


def test_of_a_run_that_is_whole_it_is_still_said_that_there_was_none(journal: Path, robust: Robust) -> None:
    assert robust("incident").stderr == robust("explain").stderr == "robust: there was no incident\n"
    assert "nothing has gone wrong" in robust("explain", "1").stderr
    assert "nothing runs, and there was no incident" in robust("why").stderr


def test_a_live_job_may_be_writing_its_last_line(
    serve: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    serve()
    with (run_directory / "journal.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "mo')
    assert robust("incident").stderr == "robust: no incident so far\n"
    assert robust("events").stderr == ""


def test_what_speaks_against_a_journal_is_named() -> None:
    said = doubt("j", JournalSeen(cut=2, incidents=1, files=3, has_mark=True))
    assert said == (
        "the journal 'j' is not complete (not all of it could be written, 2 lines are cut short, "
        "it lacks 2 incidents that have a file), so what happened is not known"
    )
    assert doubt("j", JournalSeen(incidents=3, files=2)) == ""
    assert (
        doubt("j", JournalSeen(problem="cannot read 'j': no")) == "cannot read 'j': no, so what happened is not known"
    )
