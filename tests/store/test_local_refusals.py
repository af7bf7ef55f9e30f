"""Local folders that cannot be written to: full, read-only, not ours. It is said which, and nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from robust_run.store.errors import AccessDenied, NoSpace, ReadOnly
from robust_run.store.opening import open_store


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "robust-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_to_be_full_and_nothing_is_left(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    store.write_all("before", b"here")
    with pytest.raises(NoSpace, match=r"big: No space left on device: free some space"):
        store.write_all("big", bytes(2 << 20))
    with pytest.raises(NoSpace):
        store.create("announced", 2 << 20)
    growing = store.create("growing")
    with pytest.raises(NoSpace):
        growing.write_at(0, [memoryview(bytes(2 << 20))])
    growing.abort()
    assert names(small_disk) == ["before"]
    assert shutil.disk_usage(small_disk).free > 900 << 10
    store.write_all("after", bytes(1000))
    assert store.read_all("before", 10) == b"here"


def test_a_file_system_that_is_read_only_is_told_from_one_that_is_not_ours(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    store.write_all("f", b"x")
    assert store.writable
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not store.writable
    for write in (lambda: store.write_all("g", b""), lambda: store.create("g"), lambda: store.remove("f")):
        with pytest.raises(ReadOnly, match="read-only"):
            write()
    assert store.read_all("f", 1) == b"x"


def test_a_folder_that_is_not_ours_is_denied(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do anything")
    tmp_path.chmod(0o500)
    store = open_store(str(tmp_path))
    assert not store.writable
    with pytest.raises(AccessDenied):
        store.write_all("f", b"")
