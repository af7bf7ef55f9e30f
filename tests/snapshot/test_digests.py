"""Large files that a set-up names are read once, as long as they stay what they are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from robust_run.snapshot.digests import LEAST_BYTES, SETTLED_NS, Digests


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "large.whl"
    path.write_bytes(b"a" * LEAST_BYTES)
    return path


def later(path: Path) -> Digests:
    """Digests in a folder, at a time when all files are long settled."""
    return Digests(str(path), lambda: 1 << 62)


def noted(folder: Path, wheel: Path) -> Digests:
    found = later(folder)
    found.note(str(wheel), wheel.stat(), hashlib.sha256(wheel.read_bytes()).hexdigest())
    found.save()
    return found


def test_what_was_read_is_known_at_the_next_start(tmp_path: Path, wheel: Path) -> None:
    noted(tmp_path / "cache", wheel)
    assert later(tmp_path / "cache").find(str(wheel), wheel.stat()) == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_a_file_that_was_touched_is_read_again(tmp_path: Path, wheel: Path) -> None:
    noted(tmp_path / "cache", wheel)
    before = wheel.stat()
    wheel.write_bytes(b"b" * LEAST_BYTES)
    os.utime(wheel, ns=(before.st_atime_ns, before.st_mtime_ns))  # only the time of the inode's change tells
    while wheel.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system is coarse
        os.utime(wheel, ns=(before.st_atime_ns, before.st_mtime_ns))
    other = tmp_path / "other"
    other.write_bytes(b"a" * LEAST_BYTES)
    assert later(tmp_path / "cache").find(str(wheel), wheel.stat()) is None
    assert later(tmp_path / "cache").find(str(wheel), other.stat()) is None


def test_what_changed_just_now_may_change_again_and_is_not_noted(tmp_path: Path, wheel: Path) -> None:
    found = Digests(str(tmp_path / "cache"), lambda: wheel.stat().st_ctime_ns + SETTLED_NS - 1)
    found.note(str(wheel), wheel.stat(), "0" * 64)
    assert found.find(str(wheel), wheel.stat()) is None


def test_what_others_can_write_or_is_damaged_is_as_nothing(tmp_path: Path, wheel: Path) -> None:
    noted(tmp_path / "cache", wheel)
    kept = tmp_path / "cache/digests.json"
    kept.chmod(0o666)
    assert later(tmp_path / "cache").find(str(wheel), wheel.stat()) is None
    for data in (b"", b"[", b'{"x": 1}', b"[" * 100_000, b"\xff"):
        kept.chmod(0o600)
        kept.write_bytes(data)
        assert later(tmp_path / "cache").find(str(wheel), wheel.stat()) is None
    assert noted(tmp_path / "cache", wheel).find(str(wheel), wheel.stat()) is not None


def test_where_nothing_can_be_kept_nothing_is_wrong(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").touch()
    assert noted(tmp_path / "file/cache", wheel).find(str(wheel), wheel.stat()) is not None
    assert Digests(None).find(str(wheel), wheel.stat()) is None
