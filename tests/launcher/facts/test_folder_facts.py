"""Facts of a folder of runs: each that can be read is there, each that cannot is counted by its reason, and hides no other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from robust_run.errors import PlatformError
from robust_run.fleet.words import RunFacts
from robust_run.launcher.operator.reading.facts_of_folder import MOST_NAMED, WENT_ON_S, FolderFacts, facts_of_folder
from robust_run.launcher.operator.reading.run_facts import LARGEST_JOURNAL_BYTES, nobody_lives

RECORDED = Path(__file__).resolve().parents[2] / "data" / "run_before_the_rooms"
NOW_S = 1.9e9


def a_run(folder: Path, name: str = "a-run") -> Path:
    """Make a sound run directory, whose files are as old as its end."""
    path = Path(shutil.copytree(RECORDED, folder / name))
    os.utime(path / "journal.jsonl", (1795425687, 1795425687))
    return path


def facts_in(folder: Path, **more: object) -> FolderFacts:
    return facts_of_folder(str(folder), NOW_S, nobody_lives, **more)  # type: ignore[arg-type]


def damaged(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.mkdir()
    (path / "journal.jsonl").write_bytes(content)
    return path


def header(size: int = 1) -> bytes:
    return b"".join((RECORDED / "journal.jsonl").read_bytes().splitlines(keepends=True)[:size])


def test_what_cannot_be_read_is_counted_by_its_reason(tmp_path: Path) -> None:
    a_run(tmp_path)
    damaged(tmp_path, "binary", b"\x00\xff\n" * 100)
    damaged(tmp_path, "nothing", b"")
    damaged(tmp_path, "text", b"no journal of ours\n")
    damaged(tmp_path, "no-schema", b'{"schema":"1"}\n')
    damaged(tmp_path, "deep", b'{"schema":' + b"[" * 100_000 + b"\n")
    damaged(tmp_path, "tomorrow", header().replace(b'"schema":1', b'"schema":2') + b"{}\n")
    damaged(tmp_path, "begun", header())
    (tmp_path / "elsewhere" / "attempt_0").mkdir(parents=True)
    (tmp_path / "folder" / "journal.jsonl").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "journal.jsonl")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "journal.jsonl").symlink_to("journal.jsonl")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "journal.jsonl").symlink_to("/nowhere/at/all")
    (tmp_path / "wandb").mkdir()
    (tmp_path / "notes.txt").write_text("no run")
    (tmp_path / "ring").symlink_to("ring")
    found = facts_in(tmp_path)
    assert [each.run_id for each in found.runs] == ["a-run"]
    assert found.skipped == {"no journal": 5, "newer version": 1, "empty": 1, "elsewhere": 1, "unreadable": 4}
    assert {os.path.basename(each.place): each.reason for each in found.named}["tomorrow"] == "newer version"
    assert all(each.why for each in found.named)


def test_a_huge_file_of_others_costs_no_memory_and_no_time(tmp_path: Path) -> None:
    """Both are files with holes: one without a line in it, one whose first line is ours."""
    for name, content in (("hole", b""), ("ours", header())):
        path = damaged(tmp_path, name, content) / "journal.jsonl"
        os.truncate(path, LARGEST_JOURNAL_BYTES + (1 << 30))
    assert facts_in(tmp_path).skipped == {"too large": 2}


def test_a_line_of_endless_length_is_passed_over(tmp_path: Path) -> None:
    """A disk's doing in the middle of a journal: what is before it and after it counts."""
    path = a_run(tmp_path) / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"\0" * (40 << 20), b"\n", *lines[3:]]))
    [facts] = facts_in(tmp_path).runs
    assert (facts.state, len(facts.incidents), facts.steps) == ("done", 1, 61)


def test_two_ways_to_one_run_count_once(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    (tmp_path / "latest").symlink_to(run)
    (run / "runs").symlink_to(tmp_path)
    assert len(facts_in(tmp_path).runs) == 1
    assert len(facts_in(run).runs) == 1, "a folder that is a run is that run"


def test_a_run_that_has_written_its_facts_is_not_read_again(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    [facts] = facts_in(tmp_path).runs
    written = msgspec.structs.replace(facts, name="as it was written")
    assert facts_in(tmp_path, known={"a-run": written}).runs == (written,)
    shutil.rmtree(run)
    assert facts_in(tmp_path, known={"a-run": written}).runs == (written,), "it is kept when its run directory is not"


def test_a_run_that_went_on_after_it_had_written_its_facts_is_read(tmp_path: Path) -> None:
    """A scheduler has started it again."""
    run = a_run(tmp_path)
    [facts] = facts_in(tmp_path).runs
    written = msgspec.structs.replace(facts, name="as it was written")
    later_s = facts.until_s + WENT_ON_S + 1
    os.utime(run / "journal.jsonl", (later_s, later_s))
    assert facts_in(tmp_path, known={"a-run": written}).runs == (facts,)


@pytest.mark.parametrize("state", ["live", "lost"])
def test_what_is_known_of_a_run_that_was_not_over_is_known_anew(tmp_path: Path, state: str) -> None:
    a_run(tmp_path)
    [facts] = facts_in(tmp_path).runs
    before: RunFacts = msgspec.structs.replace(facts, state=state, name="of before")
    assert facts_in(tmp_path, known={"a-run": before}).runs == (facts,)
    assert facts_in(tmp_path / "a-run" / "incidents", known={"a-run": before}).runs == ()


def test_a_fault_of_ours_in_one_run_hides_no_other(tmp_path: Path) -> None:
    a_run(tmp_path)
    lines = (a_run(tmp_path, "b-run") / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "b-run" / "journal.jsonl").write_bytes(b"".join(lines[:5]))

    def lives(controller: object) -> bool:
        raise ZeroDivisionError(controller)

    found = facts_of_folder(str(tmp_path), NOW_S, lives)
    assert len(found.runs) == 1
    assert found.skipped == {"not understood": 1}


def test_of_many_damaged_runs_some_are_named_and_all_are_counted(tmp_path: Path) -> None:
    for number in range(MOST_NAMED + 5):
        damaged(tmp_path, f"run-{number}", b"?\n")
    found = facts_in(tmp_path)
    assert (found.skipped, len(found.named)) == ({"no journal": MOST_NAMED + 5}, MOST_NAMED)


@pytest.mark.parametrize("name", ["not there", "\0", "file"])
def test_a_folder_that_cannot_be_listed_is_an_error_with_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlatformError, match="cannot list"):
        facts_in(tmp_path / name)
