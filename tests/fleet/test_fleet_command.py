"""`robust fleet`: folders of real run directories, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from fleet_made import Planted, fleet
from made_journals import write_run

from robust_run.errors import PlatformError, UserError
from robust_run.fleet.files import index
from robust_run.launcher.operator.commands.fleet_command import fleet as command
from robust_run.launcher.operator.reading.fleet import FleetReader
from robust_run.launcher.operator.reading.run_facts import nobody_lives
from robust_run.robust_cli import robust


def asked(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty runs, a damaged one, and one with a page of its own."""
    where = tmp_path_factory.mktemp("runs")
    for run in fleet(Planted(runs=50, nodes=20), 3):
        write_run(where, run)
    (where / "damaged").mkdir()
    (where / "damaged" / "journal.jsonl").write_text("x")
    (where / "job-0001" / "report.html").write_text("a page")
    return where


def test_it_says_what_is_in_a_folder(folder: Path) -> None:
    done = asked(str(folder))
    assert done.return_value == 0
    first = done.output.splitlines()
    assert first[0] == "fleet      50 runs: 50 done"
    assert any(line.startswith("left out   1 directory: 1 ") for line in first[:8])


def test_a_folder_that_is_named_twice_or_linked_to_counts_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job-0001").symlink_to(folder / "job-0001")
    shutil.copytree(folder / "job-0002", tmp_path / "other" / "job-0002-copied")
    one = json.loads(asked(str(folder), "--json").output)
    several = [str(folder), f"{folder}/", str(tmp_path / "link"), str(tmp_path / "other"), str(folder / "job-0003")]
    found = json.loads(asked(*several, "--json").output)
    assert found["twice"] == 3
    assert (found["runs"], found["incidents"], found["hours"]) == (one["runs"], one["incidents"], one["hours"])


def test_json_has_all(folder: Path) -> None:
    found = json.loads(asked(str(folder), "--json").output)
    assert found["schema"] == 1
    assert found["folders"] == [str(folder)]
    assert len(found["lines"]) == 50
    assert found["rates"]["interruptions"]["low"] < found["rates"]["interruptions"]["high"]
    assert found["skipped"][0]["count"] == 1
    assert "journal" in found["skipped"][0]["example"]


def test_since_leaves_out_what_was_before(folder: Path) -> None:
    all_, late = (json.loads(asked(str(folder), "--json", *more).output) for more in ((), ("--since", "2026-11-01")))
    assert 0 < late["runs"] < all_["runs"]
    assert 0 < late["incidents"] < all_["incidents"]
    assert late["begin_unix_s"] >= late["since_unix_s"]
    assert json.loads(asked(str(folder), "--json", "--since", "2026-11-01T00:00:00Z").output)["runs"] > 0


def test_a_page_and_figures_are_written_beside_each_other(folder: Path, tmp_path: Path) -> None:
    page, prom = folder / "fleet.html", tmp_path / "fleet.prom"
    done = asked(str(folder), "--html", str(page), "--prometheus", str(prom))
    assert done.output.startswith("robust: ")
    assert "50 runs, ETTR " in done.output
    html = page.read_text()
    assert '<a href="job-0001/report.html">' in html
    assert f"robust fleet {folder} --html {page}" in html
    assert prom.read_text().startswith("# HELP robust_run_fleet_")
    assert os.listdir(tmp_path) == ["fleet.prom"], "no draft is left that a collector would read"
    assert asked(str(folder), "--prometheus", "-").output.startswith("# HELP robust_run_fleet_")
    page.unlink()


def test_runs_that_left_their_facts_are_not_read_again_and_outlive_their_directories(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("job-0001", "job-0002"):
        shutil.copytree(folder / name, tmp_path / name)
    first = FleetReader([str(tmp_path)], nobody_lives).read(2e9)
    for each in first.runs:
        index.keep(str(tmp_path), msgspec.structs.replace(each, name="as it was kept"))
        os.utime(tmp_path / each.run_id / "journal.jsonl", (each.until_s, each.until_s))
    shutil.rmtree(tmp_path / "job-0002")
    again = FleetReader([str(tmp_path)], nobody_lives).read(2e9)
    assert {each.run_id for each in again.runs} == {"job-0001", "job-0002"}
    assert {each.name for each in again.runs} == {"as it was kept"}
    assert not again.skipped


def test_damaged_facts_are_counted_and_the_run_is_read_from_its_directory(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "job-0001", tmp_path / "job-0001")
    [facts] = FleetReader([str(tmp_path)], nobody_lives).read(2e9).runs
    index.keep(str(tmp_path), facts)
    [kept] = Path(index.folder_of(str(tmp_path))).glob("*.json")
    kept.write_bytes(kept.read_bytes()[:-9])
    found = FleetReader([str(tmp_path)], nobody_lives).read(2e9)
    assert found.runs == (facts,)
    assert [(each.why, each.count) for each in found.skipped] == [("damaged (in .fleet)", 1)]


def test_of_runs_that_were_read_before_no_journal_is_read_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "job-0001", tmp_path / "job-0001")
    reader = FleetReader([str(tmp_path)], nobody_lives)
    first = reader.read(2e9)
    journal = tmp_path / "job-0001" / "journal.jsonl"
    written_s = journal.stat().st_mtime
    journal.write_text("it is read no more")
    os.utime(journal, (written_s, first.runs[0].until_s))
    assert reader.read(2e9).runs == first.runs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no folder 'nowhere'; name folders of runs"),
        (["/etc/passwd"], "'/etc/passwd' is a file, not a folder; name folders of runs"),
        (["/dev/null"], "'/dev/null' is no folder; name folders of runs"),
        (["."], "no run in "),
        ([".", "--since", "soon"], "--since 'soon' is no time in the past; write 12h, 30d or 2026-11-01"),
        ([".", "--since", "2999-01-01"], "is no time in the past"),
        ([".", "--since", "-3d"], "is no time in the past"),
        ([".", "--watch", "0"], "--watch '0': write a time as 30s or 5m"),
        ([".", "--prometheus", "x.txt"], "reads names that end in .prom"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_next_step(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, PlatformError)) as caught:
        asked(*words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_page_that_cannot_be_written_is_an_error_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a file that can be written"):
        asked(str(folder), "--html", str(tmp_path / "no" / "page.html"))


def test_where_all_is_damaged_it_says_so_and_fails(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "journal.jsonl").write_text("x")
    done = asked(str(tmp_path))
    assert done.return_value == 1
    assert done.output.splitlines()[1].startswith("left out   1 directory: ")


def test_a_page_is_kept_up_to_date_until_ctrl_c(folder: Path, tmp_path: Path) -> None:
    """Also while the folder is away for a while."""
    runs, page, away = tmp_path / "runs", tmp_path / "fleet.html", tmp_path / "away"
    shutil.copytree(folder / "job-0001", runs / "job-0001")
    words = ["fleet", str(runs), "--html", str(page), "--watch", "1s"]
    code = "from robust_run.robust_cli import main; main()"
    watching = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: page.exists() and "1 run on" in page.read_text())
        runs.rename(away)
        assert watching.stderr is not None
        assert "cannot list" in watching.stderr.readline()
        shutil.copytree(folder / "job-0002", away / "job-0002")
        away.rename(runs)
        wait_for(lambda: "2 runs on" in page.read_text())
        watching.send_signal(signal.SIGINT)
        said = watching.communicate(timeout=60)[1]
        assert watching.returncode == 0, said
    finally:
        watching.kill()
        watching.wait()


def wait_for(happened: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + 60.0
    while not happened():
        assert time.monotonic() < give_up_at_s
        time.sleep(0.05)


def test_it_is_imported_when_it_is_asked_for() -> None:
    assert "fleet" in robust.list_commands(click.Context(robust))
    code = "import sys, robust_run.robust_cli; print([m for m in sys.modules if 'fleet' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
