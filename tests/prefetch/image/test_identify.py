"""What kind of image a file is; and that no header can lie its way out."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch import launch
from robust_run.prefetch.errors import BlockMapRefused, ImageRefused
from robust_run.prefetch.image import identify
from tests.prefetch.image.tools import needs, small_tree


@pytest.fixture
def image(tmp_path: Path) -> Path:
    needs("mksquashfs")
    path = tmp_path / "image.sqsh"
    subprocess.run(
        ["mksquashfs", small_tree(tmp_path), path, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL
    )
    return path


def sif(
    payload: bytes, *, offset: int = 32768, length: int | None = None, kind: int = 1, part: int = 2, **head: int
) -> bytes:
    """A SIF as Apptainer writes it: a header, a definition file's descriptor, the primary partition's descriptor, data."""
    fields = {"free": 46, "total": 48, "at": 128, **head}
    header = struct.pack(
        "<32s10s3s3s16s8q", b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"u" * 16, 1, 1,
        fields["free"], fields["total"], fields["at"], 48 * 585, offset, len(payload),
    )  # fmt: skip
    definition = struct.pack("<i?III7q128s384s", 0x4001, True, 1, 1, 0, 4000, 10, 10, 1, 1, 0, 0, b"def", b"")
    size = len(payload) if length is None else length
    extra = struct.pack("<ii3s", kind, part, b"02\0")
    partition = struct.pack("<i?III7q128s384s", 0x4004, True, 2, 1, 0, offset, size, size, 1, 1, 0, 0, b"fs", extra)
    return (header + definition + partition).ljust(max(0, min(offset, 1 << 20)), b"\0") + payload


def test_a_squashfs_is_the_whole_file(image: Path) -> None:
    found = identify.identify(str(image))
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("squashfs", 0, image.stat().st_size)
    assert found.squashfs is not None
    assert found.squashfs.compression == "gzip"


def test_in_a_sif_the_squashfs_is_the_primary_partition(image: Path, tmp_path: Path) -> None:
    path = tmp_path / "image.sif"
    path.write_bytes(sif(image.read_bytes(), offset=40 << 10))
    found = identify.identify(str(path))
    assert (found.kind, found.offset_bytes, found.size_bytes) == ("sif", 40 << 10, image.stat().st_size)
    assert found.machine == "x86_64"


def test_a_sif_of_another_architecture_is_not_started(image: Path, tmp_path: Path) -> None:
    path = tmp_path / "image.sif"
    data = bytearray(sif(image.read_bytes()))
    data[45:47] = b"04"
    path.write_bytes(data)
    with pytest.raises(BlockMapRefused, match="made for aarch64, and this machine is x86_64"):
        launch.prepare(str(path), str(tmp_path / "cache"), "launch", "x86_64")
    assert launch.prepare(str(path), str(tmp_path / "cache"), "launch", "aarch64").block_map.machine == "aarch64"


def test_folders_are_told_apart(tmp_path: Path) -> None:
    assert identify.identify(str(tmp_path)).kind == "directory"
    (tmp_path / "oci-layout").write_text("{}")
    (tmp_path / "index.json").write_text("{}")
    assert identify.identify(str(tmp_path)).kind == "oci"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offset": 1 << 62}, "is not in the file"),
        ({"offset": -4096}, "is not in the file"),
        ({"length": 1 << 62}, "is not in the file"),
        ({"length": -1}, "is not in the file"),
        ({"kind": 5}, "encrypted squashfs"),
        ({"kind": 2}, "ext3"),
        ({"part": 3}, "0 primary partitions"),
        ({"total": 1 << 40, "free": 0}, "at most 4096"),
        ({"total": -1}, "at most 4096"),
        ({"at": 1 << 61}, "is not in the file"),
        ({"at": -585}, "is not in the file"),
    ],
)
def test_a_sif_header_that_lies_is_refused(image: Path, tmp_path: Path, change: dict[str, int], said: str) -> None:
    path = tmp_path / "image.sif"
    path.write_bytes(sif(image.read_bytes(), **change))
    with pytest.raises(ImageRefused, match=said):
        identify.identify(str(path))


def test_an_image_that_was_cut_short_is_refused(image: Path) -> None:
    data = image.read_bytes()
    image.write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageRefused, match="it says it has"):
        identify.identify(str(image))


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((ImageRefused, OSError)):
        identify.identify(str(tmp_path / "pipe"))


@given(st.binary(max_size=200), st.integers(0, 1 << 62))
def test_whatever_a_superblock_says_only_our_error_comes(data: bytes, size_bytes: int) -> None:
    head = struct.pack("<I", 0x73717368) + data
    try:
        found = identify.superblock(head, size_bytes, "it")
    except ImageRefused:
        return
    assert found.bytes_used <= size_bytes


@given(st.binary(min_size=86, max_size=86), st.integers(0, 1 << 62))
def test_whatever_a_sif_header_says_the_table_lies_in_the_file(data: bytes, size_bytes: int) -> None:
    try:
        table = identify.sif_header(b"\0" * 32 + b"SIF_MAGIC\0" + b"01\0" + data[3:], size_bytes, "it")
    except ImageRefused:
        return
    assert table.offset_bytes + table.count * 585 <= size_bytes
