"""`robust ckpt restore` where something lies already: a checkpoint that was committed is never made worse."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from made_checkpoints import UNIT_BYTES, make_checkpoint

from robust_run.ckpt_io.address import parse
from robust_run.ckpt_io.copying.restore import restore
from robust_run.ckpt_io.copying.sources import open_source
from robust_run.ckpt_io.copying.types import RestoreResult
from robust_run.ckpt_io.errors import CheckpointError, Damaged
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.errors import PlatformError, UserError

Look = dict[str, bytes]


def restored(source: Path, destination: Path, *, also: tuple[Path, ...] = ()) -> RestoreResult:
    opened = open_source(str(source))
    try:
        return restore(opened, parse(str(destination), tuple(map(str, also))))
    finally:
        opened.close()


def everything(folder: Path) -> Look:
    """Return all files below a folder, with what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path, at: int = 10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def part(folder: Path) -> Path:
    return next(folder.glob("parts-*/00000-0.part"))


@pytest.fixture
def data() -> bytes:
    return os.urandom(3 * UNIT_BYTES + 5)


def test_over_itself_with_more_targets(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "s" / "x"], {"a": data})
    before = everything(tmp_path)
    with pytest.raises(UserError, match="source and destination are the same"):
        restored(tmp_path / "s" / "x", tmp_path / "s" / "x", also=(tmp_path / "o",))
    assert everything(tmp_path) == before


def test_over_itself_with_fewer_targets(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "s" / "y", tmp_path / "o" / "y"], {"a": data})
    before = everything(tmp_path)
    with pytest.raises(UserError, match="source and destination are the same"):
        restored(tmp_path / "s" / "y", tmp_path / "s" / "y")
    assert everything(tmp_path) == before


def test_over_itself_by_another_path(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "s" / "x"], {"a": data})
    (tmp_path / "alias").symlink_to(tmp_path / "s")
    before = everything(tmp_path)
    with pytest.raises(UserError, match="source and destination are the same"):
        restored(tmp_path / "s" / "x", tmp_path / "alias" / "x", also=(tmp_path / "o",))
    assert everything(tmp_path) == before


def test_onto_the_second_target_of_the_source(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "s" / "y", tmp_path / "o" / "y"], {"a": data})
    before = everything(tmp_path)
    with pytest.raises(UserError):
        restored(tmp_path / "s" / "y", tmp_path / "p" / "y", also=(tmp_path / "o",))
    assert everything(tmp_path) == before


def test_a_plain_file_over_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(UserError, match="source and destination are the same"):
        restored(tmp_path / "file", tmp_path / "file")
    assert everything(tmp_path) == {"file": b"content"}


def test_another_layout_over_a_good_copy_is_refused(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    restored(tmp_path / "src", tmp_path / "dst")
    flip(part(tmp_path / "src"))
    before = everything(tmp_path)
    with pytest.raises(UserError, match=r"in another layout .* name a new folder"):
        restored(tmp_path / "src", tmp_path / "dst", also=(tmp_path / "another",))
    assert everything(tmp_path) == before
    with open_checkpoint(str(tmp_path / "dst")) as opened:
        assert opened.check() == []


def test_the_same_layout_is_verified_and_only_bad_units_are_fetched(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    restored(tmp_path / "src", tmp_path / "dst", also=(tmp_path / "also",))
    assert restored(tmp_path / "src", tmp_path / "dst", also=(tmp_path / "also",)).fetched_bytes == 0
    flip(part(tmp_path / "dst"))
    assert restored(tmp_path / "src", tmp_path / "dst", also=(tmp_path / "also",)).fetched_bytes == UNIT_BYTES
    with open_checkpoint(str(tmp_path / "dst")) as opened:
        assert opened.check() == []


def test_a_damaged_source_does_not_harm_a_good_copy(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    restored(tmp_path / "src", tmp_path / "dst")
    flip(part(tmp_path / "src"))
    assert restored(tmp_path / "src", tmp_path / "dst").fetched_bytes == 0
    flip(part(tmp_path / "dst"))
    with pytest.raises(Damaged):
        restored(tmp_path / "src", tmp_path / "dst")


def test_parts_under_a_damaged_manifest_are_left_to_repair(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    restored(tmp_path / "src", tmp_path / "dst")
    flip(tmp_path / "dst" / "MANIFEST", 60)
    before = everything(tmp_path)
    with pytest.raises(UserError, match="robust ckpt repair"):
        restored(tmp_path / "src", tmp_path / "dst", also=(tmp_path / "another",))
    assert everything(tmp_path) == before


def test_another_checkpoint_of_that_name_is_whole_until_the_commit(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "dst"], {"a": b"old"})
    before = everything(tmp_path / "dst")
    make_checkpoint([tmp_path / "src"], {"a": data})
    good = part(tmp_path / "src").read_bytes()
    flip(part(tmp_path / "src"))
    with pytest.raises(CheckpointError):
        restored(tmp_path / "src", tmp_path / "dst")
    assert everything(tmp_path / "dst").items() >= before.items()
    part(tmp_path / "src").write_bytes(good)
    restored(tmp_path / "src", tmp_path / "dst")
    with open_checkpoint(str(tmp_path / "dst")) as opened:
        assert opened.read_bytes(0, 0, len(data)) == data


@pytest.mark.parametrize("name", [".two.restore-journal", ".two.restoring"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "one").write_bytes(b"content")
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(PlatformError, match=rf"{name} is a symbolic link"):
        restored(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "two").exists()


def test_nor_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    os.mkfifo(tmp_path / ".two.restoring")
    with pytest.raises(PlatformError, match="restoring"):
        restored(tmp_path / "one", tmp_path / "two")


def test_nor_into_a_folder_of_parts_that_is_a_link(tmp_path: Path, data: bytes) -> None:
    manifest = make_checkpoint([tmp_path / "src"], {"a": data})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst" / f"parts-{manifest.uuid}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlatformError, match="symbolic link"):
        restored(tmp_path / "src", tmp_path / "dst")
    assert everything(tmp_path / "elsewhere") == {}


def test_nor_over_a_part_that_is_a_link(tmp_path: Path, data: bytes) -> None:
    manifest = make_checkpoint([tmp_path / "src"], {"a": data})
    (tmp_path / "victim").write_bytes(b"precious")
    parts = tmp_path / "dst" / f"parts-{manifest.uuid}"
    parts.mkdir(parents=True)
    (parts / "00000-0.part").symlink_to(tmp_path / "victim")
    with pytest.raises(PlatformError, match="symbolic link"):
        restored(tmp_path / "src", tmp_path / "dst")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_destination_that_is_a_link_is_fine(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    (tmp_path / "disk").mkdir()
    (tmp_path / "dst").symlink_to(tmp_path / "disk")
    restored(tmp_path / "src", tmp_path / "dst")
    with open_checkpoint(str(tmp_path / "disk")) as opened:
        assert opened.read_bytes(0, 0, len(data)) == data


def test_one_restore_to_a_destination_at_a_time(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    journal = tmp_path / ".dst.restore-journal"
    with journal.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=f"another restore to {tmp_path}/dst is under way"):
            restored(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    restored(tmp_path / "src", tmp_path / "dst")
    assert not journal.exists()


def test_a_second_restore_while_the_first_one_runs(tmp_path: Path, data: bytes) -> None:
    make_checkpoint([tmp_path / "src"], {"a": data})
    said: list[str] = []

    def start_another(_: int) -> None:
        with pytest.raises(UserError) as caught:
            restored(tmp_path / "src", tmp_path / "dst")
        said.append(str(caught.value))

    opened = open_source(str(tmp_path / "src"))
    progress: Callable[[int], None] = start_another
    restore(opened, parse(str(tmp_path / "dst")), progress=progress)
    opened.close()
    assert said
    assert all("is under way" in line for line in said)
    with open_checkpoint(str(tmp_path / "dst")) as copy:
        assert copy.check() == []
