"""The block map of an image: what it says, and what it may not say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefetch.images import MIB, SMALL_BLOCK, make_image

from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import BlockMapRefused
from robust_run.prefetch.rules.types import BlockMap


def test_each_block_is_known_by_its_digest(tmp_path: Path) -> None:
    path, found = make_image(tmp_path, 2 * MIB + 5)
    data = path.read_bytes()
    assert found.blocks == 3
    assert found.block_size_bytes(2) == 5
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert all(blockmap.is_good(found, index, data[index * MIB : (index + 1) * MIB]) for index in range(3))
    assert not blockmap.is_good(found, 0, data[MIB : 2 * MIB])
    assert not blockmap.is_good(found, 2, data[2 * MIB : 2 * MIB + 4])


def test_blocks_are_small_in_small_images_so_that_what_each_node_reads_for_itself_is_little(tmp_path: Path) -> None:
    sizes = [1, 40 * MIB, 256 * MIB, 257 * MIB, 1 << 30, 4 << 30, 20 << 30, 16 << 40]
    found = [blockmap.block_bytes_for(size) for size in sizes]
    assert found == [each * MIB // 8 for each in (1, 1, 1, 2, 2, 4, 8, 8)]
    # Eight nodes read four blocks each: seven times too many. Each reads the map, 22 bytes a block.
    assert all(7 * 4 * each <= size * 0.1 for each, size in zip(found[1:], sizes[1:], strict=True))
    assert all(8 * 22 * (size // each) <= max(size * 0.002, 1e5) for each, size in zip(found, sizes, strict=True))
    (tmp_path / "image").write_bytes(bytes(MIB))
    assert blockmap.make(str(tmp_path / "image")).block_bytes == MIB // 8


def test_the_window_of_a_larger_file_has_the_map_of_the_window(tmp_path: Path) -> None:
    path, alone = make_image(tmp_path, 3 * SMALL_BLOCK, block_bytes=SMALL_BLOCK)
    around = tmp_path / "train.sif"
    around.write_bytes(b"head" * 100 + path.read_bytes() + b"tail")
    found = blockmap.make(str(around), offset_bytes=400, size_bytes=3 * SMALL_BLOCK, block_bytes=SMALL_BLOCK)
    assert found.offset_bytes == 400
    assert found.digests == alone.digests
    assert blockmap.identity(found) == blockmap.identity(alone)


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (-1, 5), (10, 1), (0, 11), (11, None)])
def test_a_window_outside_the_file_is_refused(tmp_path: Path, offset: int, size: int | None) -> None:
    (tmp_path / "image").write_bytes(b"0123456789")
    with pytest.raises(BlockMapRefused, match="it has 10 bytes"):
        blockmap.make(str(tmp_path / "image"), offset_bytes=offset, size_bytes=size)


def test_a_map_survives_being_written_and_read(tmp_path: Path) -> None:
    _path, found = make_image(tmp_path, 100_000, block_bytes=SMALL_BLOCK)
    with_place = msgspec.structs.replace(found, mount_at="/opt/env")
    assert blockmap.decode(blockmap.encode(with_place)) == with_place


def test_a_map_that_lies_about_the_sum_of_the_image_names_another_cache(tmp_path: Path) -> None:
    _path, honest = make_image(tmp_path, 100_000, block_bytes=SMALL_BLOCK)
    liar = msgspec.structs.replace(honest, digests=bytes(len(honest.digests)))
    assert liar.sha256 == honest.sha256
    assert blockmap.identity(liar) != blockmap.identity(honest)


@pytest.mark.parametrize(
    ("image", "sidecar"),
    [
        ("/data/a.sqsh", "/data/a.sqsh.blocks.json"),
        ("/data/what?.sqsh", "/data/what?.sqsh.blocks.json"),
        ("https://h/a.sqsh?sig=x", "https://h/a.sqsh.blocks.json?sig=x"),
    ],
)
def test_the_sidecar_lies_beside_the_image(image: str, sidecar: str) -> None:
    assert blockmap.sidecar(image) == sidecar


def _sound() -> dict[str, Any]:
    return {
        "schema": "robust-blocks",
        "version": 1,
        "size_bytes": 70_000,
        "block_bytes": SMALL_BLOCK,
        "sha256": "0" * 64,
        "digests": "A" * 43 + "=",
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", "another"),
        ("version", 2),
        ("size_bytes", 0),
        ("size_bytes", -5),
        ("size_bytes", 1 << 60),
        ("size_bytes", 10**40),
        ("size_bytes", 140_000),
        ("block_bytes", 1),
        ("block_bytes", 0),
        ("block_bytes", 65_537),
        ("block_bytes", 1 << 40),
        ("offset_bytes", -1),
        ("offset_bytes", 1 << 62),
        ("digests", ""),
        ("digests", "!"),
        ("sha256", "../../../etc"),
        ("sha256", "A" * 64),
        ("mount_at", "relative"),
        ("machine", "x86\n64"),
        ("machine", ""),
        ("mount_at", "/opt/../etc"),
        ("mount_at", "/"),
        ("mount_at", "/a\nb"),
        ("mount_at", "/" + "a" * 2000),
        ("more", 1),
    ],
)
def test_a_map_that_cannot_be_is_refused(field: str, value: object) -> None:
    sound = _sound()
    blockmap.decode(json.dumps(sound).encode())
    with pytest.raises(BlockMapRefused) as caught:
        blockmap.decode(json.dumps(sound | {field: value}).encode(), "train.sqsh.blocks.json")
    assert str(caught.value).startswith("train.sqsh.blocks.json: ")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_bytes_that_are_no_map_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(BlockMapRefused):
        blockmap.decode(data)


_values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=100)
    | st.lists(st.integers(), max_size=3)
)


@given(st.dictionaries(st.sampled_from([*_sound(), "offset_bytes", "mount_at"]), _values, max_size=4))
def test_a_map_with_other_values_is_sound_or_refused(changes: dict[str, object]) -> None:
    data = json.dumps(_sound() | changes).encode()
    try:
        found = blockmap.decode(data)
    except BlockMapRefused:
        return
    assert isinstance(found, BlockMap)
    assert len(found.digests) == 16 * found.blocks <= 16 * (found.size_bytes // SMALL_BLOCK + 1)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BlockMapRefused):
        blockmap.decode(b'{"mount_at":' + b"[" * 100_000)
