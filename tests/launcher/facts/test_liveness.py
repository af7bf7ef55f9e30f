"""Whether a run lives whose end is not on record, as far as it can be seen from here: nothing is done by it."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from pathlib import Path

import pytest

from robust_run.launcher.operator.reading.place import ApiEndpoint, this_boot, write_place
from robust_run.launcher.operator.reading.run_facts import LATELY_S, lives_here, read_facts

RECORDED = Path(__file__).resolve().parents[2] / "data" / "run_before_the_rooms"
NOW_S = 1.9e9
HERE = socket.gethostname()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that wrote its newest line an hour ago, and not how it ended."""
    path = Path(shutil.copytree(RECORDED, tmp_path / "a-run"))
    lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (path / "journal.jsonl").write_bytes(b"".join(lines[:-1]))
    wrote(path, "journal.jsonl", NOW_S - 3600)
    return path


def wrote(run: Path, name: str, at_s: float) -> None:
    (run / name).touch()
    os.utime(run / name, (at_s, at_s))


def state(run: Path) -> str:
    facts = read_facts(str(run), NOW_S, lives_here({}))
    assert facts.until_s == NOW_S if facts.state == "live" else facts.until_s < NOW_S
    return facts.state


def test_one_whose_journal_is_held_lives(run: Path) -> None:
    with open(run / "journal.jsonl", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state(run) == "live"
    assert state(run) == "lost"


@pytest.mark.parametrize("name", ["journal.jsonl", "usage.json"])
def test_one_on_another_machine_lives_if_it_has_written_lately(run: Path, name: str) -> None:
    wrote(run, name, NOW_S - LATELY_S - 1)
    assert state(run) == "lost"
    wrote(run, name, NOW_S - LATELY_S / 2)
    assert state(run) == "live"


def test_one_that_refuses_on_this_very_machine_is_gone_whatever_it_has_written(run: Path) -> None:
    wrote(run, "journal.jsonl", NOW_S)
    place = ApiEndpoint(socket=str(run / "api.sock"), pid=1, host=HERE, boot=this_boot())
    write_place(str(run), place)
    assert state(run) == "lost"


def test_one_of_this_name_that_was_started_anew_since_is_told_by_what_it_has_written(run: Path) -> None:
    """It may be another machine of this name."""
    write_place(str(run), ApiEndpoint(socket=str(run / "api.sock"), pid=1, host=HERE, boot="another"))
    assert state(run) == "lost"
    wrote(run, "usage.json", NOW_S)
    assert state(run) == "live"


def test_how_it_ended_by_its_mark(run: Path) -> None:
    """Its journal could not be written to the end."""
    os.symlink("failed-1", run / "outcome")
    facts = read_facts(str(run), NOW_S, lives_here({}))
    assert facts.state == "failed"
    assert facts.until_s == pytest.approx(1795425687.0, abs=1.0), "the last that is on record"
    ended_s = os.lstat(run / "outcome").st_mtime
    assert facts.gap_s == pytest.approx(max(ended_s - facts.until_s, 0.0), abs=1.0), "what is not known is said"
