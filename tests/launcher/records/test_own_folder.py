"""Which folder is a safe place for a run, and which healthy ones look like those that are not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.launcher.records.memory_folders import remove_memory_folders
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.own_folder import (
    FolderFacts,
    check_run,
    check_way,
    stranger_on_the_way,
    why_not_for_run,
    why_not_on_the_way,
)

US, STRANGER, TEAMMATE = 1000, 1666, 1001
FOLDER, LINK, FILE = stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG
TRUSTED = frozenset({US, 0})
SHARED = FolderFacts(0, FOLDER | 0o1777)
GUARD = 4_100_000 + os.getpid()
"""No process has such a pid."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root owns what it wants")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """What a test leaves in memory is removed."""
    yield
    remove_memory_folders(GUARD)


# --- the run directory itself


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2700, 0o750])
def test_a_folder_of_ours_that_others_cannot_write_is_taken(mode: int) -> None:
    assert why_not_for_run(FolderFacts(US, FOLDER | mode), US, None) == ""


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused_with_what_to_do(mode: int) -> None:
    why = why_not_for_run(FolderFacts(US, FOLDER | mode), US, FolderFacts(US, FOLDER | 0o700))
    assert why == f"others can write to it (mode {mode:04o}): chmod 700 makes it yours alone"


@pytest.mark.parametrize("owner", [0, STRANGER])
def test_a_folder_of_somebody_else_is_refused(owner: int) -> None:
    """Of root too: it was not made for this run."""
    made = FolderFacts(US, FOLDER | 0o700)
    assert "it belongs to user" in why_not_for_run(FolderFacts(owner, FOLDER | 0o700), US, made)
    assert "it belongs to user" in why_not_for_run(FolderFacts(owner, FOLDER | 0o700), US, None)


def test_root_does_not_take_a_users_folder() -> None:
    """That user could put a link there, and root would write through it."""
    made = FolderFacts(0, FOLDER | 0o700)
    assert why_not_for_run(FolderFacts(US, FOLDER | 0o700), 0, made) == "it belongs to user 1000, and this is user 0"


def test_a_link_of_ours_is_followed_and_one_of_somebody_else_is_not() -> None:
    assert why_not_for_run(FolderFacts(US, LINK | 0o777), US, None) == ""
    assert why_not_for_run(FolderFacts(STRANGER, LINK | 0o777), US, None) == "it is a link that user 1666 has put there"
    assert why_not_for_run(FolderFacts(US, FILE | 0o600), US, None) == "it is not a folder"


@given(st.sampled_from([65534, 0, STRANGER]), st.integers(0, 0o777))
def test_storage_that_keeps_no_owners_or_modes_is_no_stranger(owner: int, mode: int) -> None:
    """Squashed ids, FUSE, SMB: what we make there ourselves has the same owner and mode."""
    mapped = FolderFacts(owner, FOLDER | mode)
    assert why_not_for_run(mapped, US, mapped) == ""


@given(st.integers(0, 0o7777), st.integers(0, 0o7777), st.integers(0, 3), st.integers(0, 3))
def test_what_is_taken_is_ours_and_ours_alone_as_far_as_the_storage_knows(
    mode: int, made_mode: int, owner: int, made_owner: int
) -> None:
    found, made = FolderFacts(owner, FOLDER | mode), FolderFacts(made_owner, FOLDER | made_mode)
    if not why_not_for_run(found, 1, made):
        assert owner in (1, made_owner)
        assert not mode & 0o022 or mode & ~made_mode == 0


# --- the way there


@pytest.mark.parametrize(
    ("folder", "entry"),
    [
        (SHARED, FolderFacts(US, FOLDER | 0o755)),
        (SHARED, FolderFacts(0, FOLDER | 0o777)),
        (SHARED, FolderFacts(US, LINK | 0o777)),
        (SHARED, FolderFacts(STRANGER, FOLDER | 0o1777)),
        (FolderFacts(TEAMMATE, FOLDER | 0o2770), FolderFacts(TEAMMATE, FOLDER | 0o2775)),
        (FolderFacts(TEAMMATE, FOLDER | 0o2770), FolderFacts(TEAMMATE, LINK | 0o777)),
        (FolderFacts(0, FOLDER | 0o777), FolderFacts(STRANGER, FOLDER | 0o777)),
        (FolderFacts(0, FOLDER | 0o755), FolderFacts(TEAMMATE, FOLDER | 0o755)),
    ],
    ids="ours roots our-link another-tmp teams teams-link no-sticky-bit home".split(),
)
def test_healthy_parents_are_passed(folder: FolderFacts, entry: FolderFacts) -> None:
    assert why_not_on_the_way(folder, entry, TRUSTED) == ""


@pytest.mark.parametrize(("kind", "what"), [(FOLDER | 0o755, "a folder"), (LINK | 0o777, "a link")])
def test_what_a_stranger_has_put_where_anybody_can_write_is_not(kind: int, what: str) -> None:
    why = why_not_on_the_way(SHARED, FolderFacts(STRANGER, kind), TRUSTED)
    assert why == f"it is {what} of user 1666 in a folder that anybody can write to"


# --- on this machine's file system


def refused(log_dir: Path, *, run: str = "r1") -> str:
    """Return the line with which a run is refused; nothing was written."""
    before = sorted(log_dir.rglob("*")) if log_dir.exists() else []
    with pytest.raises(UserError) as error:
        RunDirectory.create(str(log_dir), run, GUARD)
    assert (sorted(log_dir.rglob("*")) if log_dir.exists() else []) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_run_directory_is_made_for_us_alone_in_a_folder_of_a_team(tmp_path: Path) -> None:
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(0o2775)
    made = RunDirectory.create(str(team / "robust-runs"), "r1", GUARD)
    assert stat.S_IMODE(os.stat(made.path).st_mode) & 0o777 == 0o700
    RunDirectory.join(str(team / "robust-runs"), "r1", GUARD)


def test_an_open_run_directory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1").chmod(0o777)
    assert "others can write to it (mode 0777): chmod 700" in refused(tmp_path)
    (tmp_path / "r1").chmod(0o700)
    RunDirectory.create(str(tmp_path), "r1", GUARD)


@needs_root
def test_a_run_directory_that_somebody_made_beforehand_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir(mode=0o700)
    os.chown(tmp_path / "r1", STRANGER, STRANGER)
    assert "it belongs to user 1666, and this is user 0; choose another --log-dir" in refused(tmp_path)
    assert os.listdir(tmp_path) == ["r1"], "the folder it was compared with is gone"


@needs_root
def test_a_link_that_somebody_put_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "runs" / "r1").symlink_to(tmp_path / "elsewhere")
    os.lchown(tmp_path / "runs" / "r1", STRANGER, STRANGER)
    assert "it is a link that user 1666 has put there" in refused(tmp_path / "runs")
    assert os.listdir(tmp_path / "elsewhere") == []


@needs_root
def test_a_link_of_ours_to_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.chown(tmp_path / "elsewhere", STRANGER, STRANGER)
    (tmp_path / "runs" / "r1").symlink_to(tmp_path / "elsewhere")
    assert "it belongs to user 1666" in refused(tmp_path / "runs")


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r1").symlink_to(tmp_path / "nowhere")
    assert "cannot make the run directory" in refused(tmp_path)


@needs_root
@pytest.mark.parametrize("is_link", [False, True])
def test_a_parent_that_a_stranger_made_where_all_may_write_is_refused(tmp_path: Path, is_link: bool) -> None:
    shared, runs = tmp_path / "tmp", tmp_path / "tmp" / "robust-runs"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "mine").mkdir()
    runs.symlink_to(tmp_path / "mine") if is_link else runs.mkdir(mode=0o777)
    os.lchown(runs, STRANGER, STRANGER)
    why = "in a folder that anybody can write to; start in it if you trust its owner, or choose another --log-dir"
    assert why in refused(runs)
    assert why in refused(runs / "deeper")
    os.lchown(runs, 0, 0)
    RunDirectory.create(str(runs), "r1", GUARD)


@needs_root
def test_a_run_of_somebody_else_is_not_resumed(tmp_path: Path) -> None:
    run = tmp_path / "r1"
    run.mkdir(mode=0o700)
    (run / "journal.jsonl").write_text("{}\n")
    os.chown(run, STRANGER, STRANGER)
    with pytest.raises(UserError, match="it belongs to user 1666, and this is user 0; continue it as its owner"):
        RunDirectory.resume(str(run))
    assert os.listdir(run) == ["journal.jsonl"]


@needs_root
def test_a_folder_of_the_team_that_one_works_in_is_as_good_as_the_code_that_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, project = tmp_path / "scratch", tmp_path / "scratch" / "project"
    project.mkdir(parents=True)
    scratch.chmod(0o1777)
    (project / "ann").mkdir()
    os.chown(project, STRANGER, STRANGER)
    check = partial(stranger_on_the_way, str(project / "ann" / "runs"))
    assert check(lambda: str(project / "ann")) is None
    assert check(lambda: str(project)) is None
    (tmp_path / "link").symlink_to(project / "ann")
    assert check(lambda: str(tmp_path / "link")) is None
    for elsewhere in (tmp_path, scratch, Path("/")):
        assert check(lambda: str(elsewhere)) is not None  # noqa: B023
    monkeypatch.chdir(project / "ann")
    RunDirectory.create("runs", "r1", GUARD)


@needs_root
def test_that_one_works_in_a_folder_makes_no_other_way_to_it_a_good_one(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    (tmp_path / "mine").mkdir()
    (scratch / "way").symlink_to(tmp_path / "mine")
    os.lchown(scratch / "way", STRANGER, STRANGER)
    assert stranger_on_the_way(str(scratch / "way" / "runs"), lambda: str(tmp_path / "mine")) is not None


def test_where_one_works_may_be_gone() -> None:
    def gone() -> str:
        raise FileNotFoundError

    assert stranger_on_the_way("/nowhere/at/all", gone) is None


def test_folders_that_are_not_there_are_no_obstacle(tmp_path: Path) -> None:
    check_way(str(tmp_path / "a" / "b"))
    check_run(str(tmp_path / "a" / "b"), "")
