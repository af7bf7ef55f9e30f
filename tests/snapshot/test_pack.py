"""Packing: the same bytes for the same files; what is missing is said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from snapshot.environments import needs_squashfs_tools
from snapshot.made import stage_of

from robust_run.snapshot.errors import CaptureRefused, SnapshotError, ToolMissing
from robust_run.snapshot.pack import pack


def fill(top: Path) -> None:
    for name in ("b", "a", "c"):
        (top / name).mkdir()
        (top / name / "file").write_bytes(name.encode() * 200_000)


def fill_in_another_order(top: Path) -> None:
    for name in ("c", "b", "a"):
        (top / name).mkdir()
        (top / name / "file").write_bytes(name.encode() * 200_000)
        os.utime(top / name / "file", (5, 5))


def test_the_same_files_give_the_same_image_whenever_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_squashfs_tools()
    packed = []
    for number, filling in enumerate((fill, fill_in_another_order)):
        (tmp_path / str(number)).mkdir()
        captured = stage_of(tmp_path / str(number), "/opt/env", filling, ("gone",))
        packed.append(pack(captured, str(tmp_path / f"{number}.sqsh"), processors=number + 1))
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")  # of a build around us: none of our business
    assert packed[0].sha256 == packed[1].sha256
    assert packed[0].listing_sha256 == packed[1].listing_sha256


def test_without_the_tool_it_is_said_what_to_install(tmp_path: Path) -> None:
    captured = stage_of(tmp_path, "/opt/env", fill)
    with pytest.raises(ToolMissing, match="mksquashfs is not installed: install squashfs-tools"):
        pack(captured, str(tmp_path / "image.sqsh"), which=lambda _: None)


def test_where_the_image_cannot_be_written_the_tool_is_quoted(tmp_path: Path) -> None:
    needs_squashfs_tools()
    captured = stage_of(tmp_path, "/opt/env", fill)
    with pytest.raises(SnapshotError, match="mksquashfs ended with"):
        pack(captured, str(tmp_path / "no such folder" / "image.sqsh"), which=shutil.which)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    def odd(top: Path) -> None:
        Path(os.fsdecode(os.path.join(os.fsencode(top), b"\xff"))).touch()

    with pytest.raises(CaptureRefused, match="no valid UTF-8"):
        stage_of(tmp_path, "/opt/env", odd)
