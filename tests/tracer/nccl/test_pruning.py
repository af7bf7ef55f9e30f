"""Compiled objects that nobody has used for long are removed when another is built, and nothing else is."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from robust_run.tracer.native import build as native
from robust_run.tracer.plugin import build
from robust_run.tracer.plugin.pruning import FEWEST, KEPT_S, KeptObject, outdated, prune

DAY_S = 24 * 3600.0
NOW_S = 2e9


def plugin(number: int) -> str:
    return f"nccl-plugin-{number:016x}-x86_64.so"


def put(folder: Path, name: str, age_s: float) -> Path:
    path = folder / name
    path.write_bytes(b"object")
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


def test_the_newest_of_each_kind_are_kept_however_old_and_others_while_they_are_used() -> None:
    ages_d = {1: 0, 2: 30, 3: 89, 4: 120, 5: 150, 6: 400}
    found = [KeptObject(plugin(number), "nccl-plugin", NOW_S - days * DAY_S) for number, days in ages_d.items()]
    found.append(KeptObject("robust_run_native-of-another-python.so", "robust_run_native", NOW_S - 700 * DAY_S))
    assert FEWEST == 4
    assert outdated(found, NOW_S) == [plugin(5), plugin(6)]
    assert outdated(found, NOW_S - 100 * DAY_S) == [plugin(6)], "the clock is that of what was just built"


def test_only_our_own_objects_are_removed_and_who_has_one_mapped_keeps_it(tmp_path: Path) -> None:
    old = [put(tmp_path, plugin(number), KEPT_S + number * DAY_S) for number in range(1, 7)]
    bad = [
        put(tmp_path, f"robust_run_native-{n:016x}.cpython-311-x86_64-linux-gnu.so.bad", 400 * DAY_S) for n in range(5)
    ]
    others = [put(tmp_path, name, 900 * DAY_S) for name in ("nccl-plugin-mine.so", "images", f"{plugin(9)}.log")]
    (tmp_path / plugin(10)).symlink_to(others[0])
    with open(old[-1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        prune(str(put(tmp_path, plugin(0), 0.0)))
        assert not old[-1].exists()
        assert mapped[:] == b"object"
    assert [path.exists() for path in old] == [True, True, True, False, False, False]
    assert sum(path.exists() for path in bad) == FEWEST
    assert all(path.exists() for path in others)
    assert (tmp_path / plugin(10)).is_symlink()


def test_a_use_is_noted_on_the_object_itself_so_that_it_stays(compiler: str, tmp_path: Path) -> None:
    path = build.ensure(str(tmp_path), shipped="").path
    os.utime(path, (1, 1))
    assert build.at_hand(str(tmp_path), shipped="") == path
    assert os.stat(path).st_mtime > DAY_S
    kept = Path(native.target_path(str(tmp_path)))
    kept.write_bytes(b"")
    os.utime(kept, (1, 1))
    assert native.is_ready(str(tmp_path))
    assert kept.stat().st_mtime > DAY_S


def test_what_is_built_makes_room(compiler: str, tmp_path: Path) -> None:
    old = [put(tmp_path, plugin(number), 30 * 365 * DAY_S) for number in range(1, 7)]
    assert build.ensure(str(tmp_path), shipped="").path
    assert sum(path.exists() for path in old) == FEWEST - 1


def test_pruning_never_raises(tmp_path: Path) -> None:
    prune(str(tmp_path / "gone" / plugin(1)))
