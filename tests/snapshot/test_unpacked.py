"""Where images are unpacked, and what is removed there: never what somebody uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from snapshot.environments import needs_squashfs_tools
from snapshot.made import snapshot_of

from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.restore import unpacked
from robust_run.snapshot.restore.place import sample
from robust_run.snapshot.restore.unpacked import Folder
from robust_run.snapshot.rules import listing
from robust_run.snapshot.rules.types import Item

DISK, MEMORY = Folder(path="/disk"), Folder(path="/memory", is_memory=True)


@pytest.mark.parametrize(("needed", "first"), [(1 << 30, MEMORY), (5 << 30, DISK)])
def test_memory_comes_first_where_there_is_plenty(needed: int, first: Folder) -> None:
    assert unpacked.order((DISK, MEMORY), needed, 64 << 30)[0] == first
    assert len(unpacked.order((DISK, MEMORY), needed, 64 << 30)) == 2


def test_what_is_used_stays_and_what_is_not_makes_room(tmp_path: Path) -> None:
    needs_squashfs_tools()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    memory = Folder(path=str(tmp_path / "memory"), is_memory=True)
    first = unpacked.unpack(*snapshot_of(tmp_path / "one", "/opt/env"), (memory,))
    assert unpacked.sweep(memory.path) == []
    assert (Path(first.path) / "r0/pkg/__init__.py").exists()
    first.let_go()
    second = unpacked.unpack(*snapshot_of(tmp_path / "two", "/opt/env"), (memory,))
    assert not Path(first.path).exists()
    assert (Path(second.path) / "r0/pkg/__init__.py").exists()
    second.let_go()


def test_a_folder_that_cannot_hold_it_is_passed_over(tmp_path: Path) -> None:
    needs_squashfs_tools()
    (tmp_path / "file").write_text("")
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    folders = (Folder(path=str(tmp_path / "file")), Folder(path=str(tmp_path / "cache")))
    found = unpacked.unpack(manifest, image, folders)
    assert found.path.startswith(str(tmp_path / "cache"))
    found.let_go()
    with pytest.raises(RestoreRefused, match="file/unpacked"):
        unpacked.unpack(manifest, image, folders[:1])


def test_some_lines_of_a_listing_are_read_without_the_others(tmp_path: Path) -> None:
    items = [Item(0, f"pkg/odd], \n{number}", "l", content="x") for number in range(3000)]
    (tmp_path / "listing.json").write_bytes(listing.encode(items))
    found = sample(str(tmp_path / "listing.json"), 25, 2)
    assert len(found) >= 45
    assert set(found) <= set(items)
    assert len(set(found)) > 30
