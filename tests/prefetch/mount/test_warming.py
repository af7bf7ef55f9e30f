"""Reading ahead without any mount of ours: an image's file by blocks, an environment's folder by files."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch import blockmap
from robust_run.prefetch.environment import lists
from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.mount import warm
from robust_run.prefetch.rules.types import QUANTUM_BYTES, BlockMap, BlockRun
from tests.prefetch.images import MIB, SMALL_BLOCK, make_image


def test_runs_become_pieces_of_the_file_and_end_with_the_image() -> None:
    block_map = BlockMap(size_bytes=9 * MIB + 5, offset_bytes=4096, sha256="0" * 64, digests=bytes(160))
    runs = [BlockRun(8, 5), BlockRun(0, 6)]
    assert warm.pieces(runs, block_map) == [
        (4096 + 8 * MIB, MIB + 5),
        (4096, 4 * MIB),
        (4096 + 4 * MIB, 2 * MIB),
    ]


def test_hot_blocks_are_read_into_memory_and_seen_there(tmp_path: Path) -> None:
    path, block_map = make_image(tmp_path, 8 * MIB)
    forget(path)
    before = warm.resident(str(path), block_map)
    if before:
        pytest.skip("this file system does not let go of clean pages")
    watch = warm.PageCacheWatch(lambda: warm.resident(str(path), block_map), every_s=0.01)
    watch.start()
    assert warm.warm(str(path), [BlockRun(4, 2), BlockRun(1, 1)], block_map, width=4) == 3 * MIB
    touched = {touch.quantum for touch in watch.stop()}
    wanted = {quantum for block in (1, 4, 5) for quantum in range(block * 8, block * 8 + 8)}
    assert wanted <= touched
    assert all(0 <= quantum < 8 * MIB // QUANTUM_BYTES for quantum in touched)


def forget(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_file_of_another_is_not_watched() -> None:
    if os.geteuid() == 0:
        pytest.skip("root owns what it wants")
    with pytest.raises(warm.CannotWatch, match="only its owner"):
        warm.resident(sys.executable, BlockMap(size_bytes=4096, sha256="0" * 64, digests=bytes(16)))


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_bytes(b"x" * 1000)
    paths = [(str(tmp_path / name), 1 << 20) for name in ("pipe", "missing", "a", ".")]
    assert warm.read_files(paths) == 1000


def test_warming_can_be_called_off(tmp_path: Path) -> None:
    path, block_map = make_image(tmp_path, 4 * MIB, block_bytes=SMALL_BLOCK)
    stop = threading.Event()
    stop.set()
    assert warm.warm(str(path), [BlockRun(0, block_map.blocks)], block_map, stop=stop) == 0


def test_files_that_are_not_seen_any_more_drop_out() -> None:
    hot = lists.merged(None, [{"a": 5, "b": 9}, {"b": 3}])
    assert [(file.path, file.first_touch_ms) for file in hot.files] == [("b", 3), ("a", 5)]
    for launch in range(2, 6):
        hot = lists.merged(hot, [{"b": launch}])
    assert (hot.launches, [file.path for file in hot.files]) == (5, ["b"])


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20).filter(
            lambda name: name not in (".", "..")
        ),
        st.integers(0, 1 << 30),
    )
)
def test_a_list_comes_back_as_it_was(recording: dict[str, int]) -> None:
    hot = lists.merged(None, [recording])
    text = lists.encode(hot)
    found = lists.decode(text)
    assert {file.path for file in found.files} == {file.path for file in hot.files if _is_text(file.path)}


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("path", ["../../etc/shadow", "/etc/shadow", "a/../../b", "", "a\\u0000b"])
def test_a_list_that_names_what_lies_elsewhere_is_refused(path: str) -> None:
    text = '{"schema":"robust-hot-files","version":1,"launches":1,"files":[["PATH",1,1.0]]}'.replace("PATH", path)
    with pytest.raises(HotListRefused):
        lists.decode(text.encode())


@given(st.binary(max_size=300))
def test_whatever_a_list_says_only_our_error_comes(data: bytes) -> None:
    with pytest.raises(HotListRefused):
        lists.decode(data)


def test_a_block_map_fits_a_warmed_window(tmp_path: Path) -> None:
    path, _whole = make_image(tmp_path, 2 * MIB)
    part = blockmap.make(str(path), offset_bytes=4096, size_bytes=MIB + 1)
    assert warm.warm(str(path), [BlockRun(0, part.blocks)], part) == MIB + 1
