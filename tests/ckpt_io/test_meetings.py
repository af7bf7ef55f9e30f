"""What nodes of a job told each other at its end, and nobody removed: it goes once it is old, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from robust_run.checkpoint.flush import choosing
from robust_run.ckpt_io.catalog import GRACE_S, MEETING_S, list_checkpoints, prune
from robust_run.ckpt_io.meetings import folder_of, remove_old_meetings
from robust_run.ckpt_io.memory.flushing.words import FlushOrder
from robust_run.store.opening import open_store

NOW_S = 1_800_000_000.0
DAY_S = 24 * 3600.0


def meeting(root: Path, number: int = 1, *notes: str, age_s: float = 2 * DAY_S) -> Path:
    """One that is so old."""
    folder = root / folder_of(f"{number:032x}")
    folder.mkdir(parents=True)
    for name in notes or ("offer-00000", "offer-00001"):
        (folder / name).write_text("{}")
    return aged(folder, age_s)


def aged(path: Path, age_s: float) -> Path:
    for each in [*path.glob("*"), path]:
        os.utime(each, (NOW_S - age_s, NOW_S - age_s), follow_symlinks=False)
    return path


def is_written_now(root: Path, age_s: float = 0.0) -> None:
    """Storage notes a time of its own."""
    folder = root / "step-1"
    folder.mkdir(parents=True)
    aged(folder, age_s)


def test_prune_removes_one_that_is_old_and_says_so(tmp_path: Path) -> None:
    old = meeting(tmp_path)
    assert list_checkpoints(str(tmp_path)) == [], "it is none of the checkpoints"
    planned = prune(str(tmp_path), dry_run=True, now_s=lambda: NOW_S)
    assert [each.name for each in planned] == [old.name] and old.exists()
    assert "nodes of a job met in it at the job's end" in planned[0].reason
    assert prune(str(tmp_path), now_s=lambda: NOW_S) == planned
    assert list(tmp_path.iterdir()) == []


def test_prune_leaves_one_of_a_job_that_may_be_ending_whatever_the_grace(tmp_path: Path) -> None:
    young, old = meeting(tmp_path, 1, age_s=MEETING_S - 1), meeting(tmp_path, 2, age_s=MEETING_S + 1)
    assert [each.name for each in prune(str(tmp_path), grace_s=0.0, now_s=lambda: NOW_S)] == [old.name]
    assert young.exists()


def test_one_note_that_is_new_keeps_all(tmp_path: Path) -> None:
    folder = meeting(tmp_path)
    os.utime(folder / "offer-00001", (NOW_S - 60, NOW_S - 60))
    assert prune(str(tmp_path), now_s=lambda: NOW_S) == []
    assert len(list(folder.iterdir())) == 2


def with_another_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")


def with_a_folder(folder: Path) -> None:
    (folder / "sign-00002").mkdir()


def with_a_link(folder: Path) -> None:
    (folder / "sign-00002").symlink_to(folder.parent)


@pytest.mark.parametrize("strange", [with_another_file, with_a_folder, with_a_link])
def test_what_has_something_else_in_it_is_left_alone(tmp_path: Path, strange: Callable[[Path], None]) -> None:
    folder = meeting(tmp_path)
    strange(folder)
    aged(folder, 2 * DAY_S)
    is_written_now(tmp_path)
    assert prune(str(tmp_path), now_s=lambda: NOW_S) == []
    assert remove_old_meetings(str(tmp_path), GRACE_S, open_store) == []
    assert len(list(folder.iterdir())) == 3


def test_other_names_and_links_are_left_alone(tmp_path: Path) -> None:
    there = meeting(tmp_path / "elsewhere")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / there.name).symlink_to(there)
    for name in (".robust-run-0123456789abcdef", ".robust-run-" + "x" * 32, "robust-run-" + "0" * 32):
        (tmp_path / "root" / name).mkdir()
        aged(tmp_path / "root" / name, 2 * DAY_S)
    is_written_now(tmp_path / "root")
    assert prune(str(tmp_path / "root"), now_s=lambda: NOW_S) == []
    assert remove_old_meetings(str(tmp_path / "root"), GRACE_S, open_store) == []
    assert len(list(there.iterdir())) == 2


@pytest.mark.parametrize(
    ("age_s", "written_ago_s", "own_s", "goes"),
    [
        (2 * DAY_S, 0.0, NOW_S, True),
        (DAY_S - 60, 0.0, NOW_S, False),
        (2 * DAY_S, 1.5 * DAY_S, NOW_S, False),  # storage has noted nothing since: its clock may stand there
        (60.0, 0.0, NOW_S + 30 * DAY_S, False),  # our clock is wrong
        (60.0, -30 * DAY_S, NOW_S, False),  # a file says a time that is yet to come
    ],
)
def test_a_job_that_writes_removes_what_is_old_by_both_clocks(
    tmp_path: Path, age_s: float, written_ago_s: float, own_s: float, goes: bool
) -> None:
    left = meeting(tmp_path, age_s=age_s)
    is_written_now(tmp_path, written_ago_s)
    assert remove_old_meetings(str(tmp_path), GRACE_S, open_store, lambda: own_s) == [left.name] * goes
    assert left.exists() != goes


@pytest.mark.parametrize("ranks", [(0, 1), (2, 3)])
def test_the_node_of_rank_0_clears_up_before_it_writes(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    left = meeting(tmp_path, age_s=4000 * DAY_S)  # years before whatever this machine's clock says
    (tmp_path / "step-1").mkdir()
    choosing.clear_up(FlushOrder(run_id="job", world_size=4, ranks=ranks, parts=()), str(tmp_path))
    assert left.exists() == (0 not in ranks)


def test_a_root_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert remove_old_meetings(str(tmp_path / "none"), GRACE_S, open_store) == []
    assert prune(str(tmp_path / "none")) == []
    order = FlushOrder(run_id="job", world_size=2, ranks=(0,), parts=())
    choosing.clear_up(order, str(tmp_path / "none"))
