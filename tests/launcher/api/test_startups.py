"""`robust report --startups`: which folders are runs, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from made_starts import attempt_of, node_start, startup_of

from robust_run.launcher.operator.commands.report_commands import report
from robust_run.launcher.operator.reading.startups import read_profile
from robust_run.report.files import startup as file

GOOD = startup_of(attempt_of(node_start(0), node_start(1)))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of all kinds, and what is none."""
    folder = tmp_path / "runs"
    contents: dict[str, bytes | None] = {
        "good": msgspec.json.encode(GOOD),
        "damaged": b'{"schema":1,"run_id":"x","attempts":[{',
        "empty": b"",
        "infinite": msgspec.json.encode(GOOD).replace(b'"total_s":', b'"total_s":1e999,"was":'),
        "newer": b'{"schema":9,"starts":{}}',
        "unfinished": msgspec.json.encode(startup_of(attempt_of(node_start(0, first_step_s=None)))),
        "begun": msgspec.json.encode(startup_of()),
        "untimed": None,
    }
    for name, content in contents.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "journal.jsonl").touch()
        if content is not None:
            (folder / name / file.NAME).write_bytes(content)
    (folder / "elsewhere" / "attempt_0").mkdir(parents=True)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / file.NAME)
    (folder / "notes").mkdir()
    (folder / "notes.txt").touch()
    return folder


def test_each_is_counted_and_named_by_why_and_none_hides_another(runs: Path) -> None:
    found = read_profile([str(runs)])
    assert (found.runs, found.starts) == (1, 1)
    assert sorted((each.kind, os.path.basename(each.path)) for each in found.unread) == [
        ("damaged", "damaged"),
        ("damaged", "empty"),
        ("damaged", "infinite"),
        ("damaged", "pipe"),
        ("not timed", "elsewhere"),
        ("not timed", "untimed"),
        ("other version", "newer"),
        ("unfinished", "begun"),
        ("unfinished", "unfinished"),
    ]


def test_a_run_that_is_named_twice_counts_once(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs)
    named = [str(runs / "good"), str(runs), str(tmp_path / "link")]
    assert read_profile(named).starts == 1


def test_what_is_no_folder_of_runs_is_named(runs: Path, tmp_path: Path) -> None:
    found = read_profile([str(tmp_path / "none"), str(runs / "notes"), str(runs / "good")])
    assert [(each.kind, each.why) for each in found.unread] == [
        ("not reached", "No such file or directory"),
        ("not reached", "no run is in it"),
    ]
    assert found.starts == 1


def test_it_is_shown_as_text_as_json_and_as_a_page(runs: Path, tmp_path: Path) -> None:
    def asked(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(report, ["--startups", *words], standalone_mode=False)
        assert done.exception is None, done.exception
        assert (done.return_value or 0) == code
        return done.stdout

    assert asked(str(runs)).startswith(
        "1 start of 1 run; left out: 4 damaged, 2 not timed, 1 other version, 2 unfinished\n"
    )
    assert asked("good", "--log-dir", str(runs)).startswith("1 start of 1 run\n")
    assert json.loads(asked(str(runs), "--json"))["groups"][0]["nodes"] == 2
    page = tmp_path / "page.html"
    assert "page.html: 1 start of 1 run" in asked(str(runs), "--html", str(page))
    assert "<h1>1 start of 1 run</h1>" in page.read_text()
    asked(str(runs / "notes"), code=1)
