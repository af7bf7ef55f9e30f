"""What is damaged is taken from a second copy, and only if it is what was saved."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from saved_checkpoints import MIB, contents, held_by, save

from robust_run.ckpt_io.errors import NotACheckpoint, TargetLost
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.repair import repair
from robust_run.ckpt_io.rules.types import Codec

HELD = contents(7, size_bytes=4_300_000)


def flip(part: Path, at: int) -> None:
    whole = bytearray(part.read_bytes())
    whole[at] ^= 4
    part.write_bytes(whole)


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("parts-*/*.part"))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd_shuffle"])
@pytest.mark.parametrize("copy_targets", [1, 3])
@pytest.mark.parametrize("copy_codec", ["none", "zstd_shuffle"])
def test_units_come_from_a_copy_however_that_is_cut(
    tmp_path: Path, codec: Codec, copy_targets: int, copy_codec: Codec
) -> None:
    save(f"{tmp_path}/a/ck", HELD, [f"{tmp_path}/b"], codec=codec)
    save(f"{tmp_path}/c0/ck", HELD, [f"{tmp_path}/c{i}" for i in range(1, copy_targets)], codec=copy_codec)
    flip(parts(tmp_path / "a/ck")[0], 10)
    flip(parts(tmp_path / "b/ck")[1], 77)
    parts(tmp_path / "b/ck")[0].unlink()
    done = repair(f"{tmp_path}/a/ck", f"{tmp_path}/c0/ck")
    assert done.left == () and len(done.units) >= 3
    assert {unit.file for unit in done.units} == set(HELD)
    assert held_by(f"{tmp_path}/a/ck") == HELD


def test_both_copies_damaged_at_different_places_mend_each_other(tmp_path: Path) -> None:
    for place in ("a", "c"):
        save(f"{tmp_path}/{place}/ck", HELD)
    flip(parts(tmp_path / "a/ck")[0], 5)
    flip(parts(tmp_path / "c/ck")[0], 2 * MIB)
    assert repair(f"{tmp_path}/a/ck", f"{tmp_path}/c/ck").left == ()
    assert repair(f"{tmp_path}/c/ck", f"{tmp_path}/a/ck").left == ()
    assert held_by(f"{tmp_path}/a/ck") == held_by(f"{tmp_path}/c/ck") == HELD


def test_what_the_copy_does_not_have_is_left_and_told(tmp_path: Path) -> None:
    save(f"{tmp_path}/a/ck", HELD)
    save(f"{tmp_path}/other/ck", contents(8, size_bytes=4_300_000))
    before = parts(tmp_path / "a/ck")[0].read_bytes()
    flip(parts(tmp_path / "a/ck")[0], 5)
    done = repair(f"{tmp_path}/a/ck", f"{tmp_path}/other/ck")
    assert done.units == () and [(fault.file, fault.unit) for fault in done.left] == [("rank0.bin", 0)]
    assert parts(tmp_path / "a/ck")[0].read_bytes()[6:] == before[6:]


def test_a_lost_target_is_filled_anew_when_the_caller_names_it(tmp_path: Path) -> None:
    save(f"{tmp_path}/a/ck", HELD, [f"{tmp_path}/b"])
    save(f"{tmp_path}/c/ck", HELD)
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(TargetLost, match="name the target's root with 'also'"):
        repair(f"{tmp_path}/a/ck", f"{tmp_path}/c/ck")
    assert not (tmp_path / "b").exists()
    done = repair(f"{tmp_path}/a/ck", f"{tmp_path}/c/ck", also=[f"{tmp_path}/b"])
    assert done.manifests == (f"{tmp_path}/b/ck",) and done.left == ()
    assert held_by(f"{tmp_path}/a/ck") == HELD


def test_the_manifest_comes_from_a_copy_on_another_target_or_of_the_same_save(tmp_path: Path) -> None:
    save(f"{tmp_path}/a/ck", HELD, [f"{tmp_path}/b"])
    shutil.copytree(tmp_path / "a", tmp_path / "a2")
    manifest = tmp_path / "a/ck/MANIFEST"
    whole = manifest.read_bytes()
    for spoil in (lambda: manifest.unlink(), lambda: flip(manifest, 99)):
        for also in ([f"{tmp_path}/b"], []):
            spoil()
            done = repair(f"{tmp_path}/a/ck", f"{tmp_path}/a2/ck", also=also)
            assert done.manifests == (f"{tmp_path}/a/ck",) and manifest.read_bytes() == whole
    assert held_by(f"{tmp_path}/a/ck") == HELD


def test_a_folder_of_nothing_is_not_made_a_checkpoint(tmp_path: Path) -> None:
    save(f"{tmp_path}/c/ck", HELD)
    os.makedirs(tmp_path / "a/ck")
    with pytest.raises(NotACheckpoint):
        repair(f"{tmp_path}/a/ck", f"{tmp_path}/c/ck")
    assert os.listdir(tmp_path / "a/ck") == []


def test_nothing_is_written_where_nothing_is_damaged(tmp_path: Path) -> None:
    save(f"{tmp_path}/a/ck", HELD)
    save(f"{tmp_path}/c/ck", HELD)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    done = repair(f"{tmp_path}/a/ck", f"{tmp_path}/c/ck")
    assert (done.units, done.manifests, done.left) == ((), (), ())
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before
    with open_checkpoint(f"{tmp_path}/a/ck", verify="full"):
        pass
