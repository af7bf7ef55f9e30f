"""What a node keeps of snapshots over months of jobs: what goes, and what never goes."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from robust_run.snapshot.node_cache import PART_S, UNUSED_S, note_use, prune

NOW_S = time.time()
DAY_S = 86400.0
NEW, OLD = "a" * 64, "b" * 64


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "unpacked").mkdir()
    return tmp_path


def image(cache: Path, digest: str, unused_days: float) -> Path:
    """An image that was fetched, and used last so long ago."""
    path = cache / "images" / f"{digest}.sqsh"
    path.write_bytes(b"image")
    seal = path.with_name(f"{path.name}.ok")
    seal.write_bytes(b"{}")
    os.utime(seal, (NOW_S - unused_days * DAY_S,) * 2)
    return path


def part(cache: Path, folder: str, whole: str, age_s: float) -> Path:
    """What a process was writing so long ago."""
    path = cache / folder / f"{whole}.0123.part"
    if folder == "unpacked":
        path.mkdir()
        (path / "file").write_bytes(b"x")
    else:
        path.write_bytes(b"x")
    os.utime(path, (NOW_S - age_s,) * 2)
    return path


def test_an_image_that_nothing_used_for_a_month_goes_when_another_one_comes(cache: Path) -> None:
    new, old = image(cache, NEW, 0), image(cache, OLD, 31)
    assert prune(str(cache), new.name, NOW_S) == [old.name]
    assert new.exists()
    assert [each.name for each in (cache / "images").iterdir() if each.name.startswith(OLD)] == [f"{old.name}.lock"]


def test_one_that_a_start_has_used_since_stays(cache: Path) -> None:
    old = image(cache, OLD, 300)
    note_use(str(old))
    assert prune(str(cache), "", NOW_S) == []
    assert old.exists()


def test_the_one_that_came_stays_whatever_the_clock_says(cache: Path) -> None:
    new = image(cache, NEW, 2 * UNUSED_S / DAY_S)
    assert prune(str(cache), new.name, NOW_S) == []


def test_in_a_folder_of_several_machines_nothing_goes(cache: Path) -> None:
    """What another machine has mounted of it would be gone there."""
    image(cache, OLD, 300)
    assert prune(str(cache), "", NOW_S, is_local=lambda _: False) == []


def test_one_that_is_mounted_is_read_on(cache: Path) -> None:
    old = image(cache, OLD, 31)
    with old.open("rb") as mounted:
        assert prune(str(cache), "", NOW_S) == [old.name]
        assert mounted.read() == b"image"


@pytest.mark.parametrize(("folder", "whole"), [("images", f"{OLD}.sqsh"), ("unpacked", OLD)])
def test_what_a_killed_process_was_writing_goes_after_a_day_but_not_what_one_writes(
    cache: Path, folder: str, whole: str
) -> None:
    left, young = part(cache, folder, whole, 2 * PART_S), part(cache, folder, whole.replace("b", "c"), 60.0)
    lock = os.open(cache / folder / f"{whole}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert prune(str(cache), "", NOW_S) == []
    finally:
        os.close(lock)
    assert prune(str(cache), "", NOW_S) == [left.name]
    assert young.exists()


def test_nothing_else_is_touched(cache: Path) -> None:
    """What was unpacked people may use; a name that is none of ours is somebody's."""
    (cache / "unpacked" / OLD).mkdir()
    os.utime(cache / "unpacked" / OLD, (0, 0))
    strangers = [cache / "images" / name for name in ("notes.part", "my.sqsh", f"{OLD}.sqsh.keep", "x.ok")]
    for path in strangers:
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    assert prune(str(cache), "", NOW_S) == []
    assert prune(str(cache / "nowhere"), "", NOW_S) == []
