"""What a launch does with an image: pure plans, and the shells that gather facts, record, and say what it brought."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefetch.images import MIB, make_image
from servers.model_origin import ModelOrigin

from robust_run.prefetch import blockmap, launch, record, window
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import BlockMapRefused
from robust_run.prefetch.hotstore import HotStore
from robust_run.prefetch.maps import fetch_map
from robust_run.prefetch.room import shortage
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import (
    QUANTUM_BYTES,
    BlockMap,
    BlockRun,
    FetchLimits,
    HotKey,
    HotList,
    Status,
    Touch,
)
from robust_run.store.errors import StoreError
from robust_run.store.types import StoreOptions

LIMITS = FetchLimits(keep_free_bytes=0)
COUNT = 40
MAP = BlockMap(size_bytes=COUNT * MIB, sha256="0" * 64, digests=bytes(16 * COUNT))
KEY = HotKey(image="i", launch="l", machine="x86_64")


def a_list(*blocks: int) -> HotList:
    per_block = MIB // QUANTUM_BYTES
    return hotlist.merged(None, KEY, [Touch(block * per_block, 10 * n) for n, block in enumerate(blocks)], 3.0)


def facts(**more: object) -> launch.LaunchFacts:
    return launch.LaunchFacts(**{"block_map": MAP, "remote": True, **more})  # type: ignore[arg-type]


def test_a_first_launch_downloads_everything_16_wide_and_records() -> None:
    made = launch.plan(facts(), LIMITS)
    assert (made.way, made.served, made.record, made.background.width) == ("first", True, True, 16)
    assert made.background.bytes_per_s is None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("mount_at", "/etc", "folder of the system"),
        ("mount_at", "/usr/lib/x", "another --mount-at"),
        ("machine", "aarch64", "made for aarch64, and this machine is x86_64"),
    ],
)
def test_an_image_that_cannot_be_shown_or_run_here_is_refused(
    tmp_path: Path, field: str, value: str, words: str
) -> None:
    path, found = make_image(tmp_path, 3 * MIB)
    sidecar = Path(blockmap.sidecar(str(path)))
    sidecar.write_bytes(blockmap.encode(msgspec.structs.replace(found, **{field: value})))
    with pytest.raises(BlockMapRefused, match=words):
        launch.prepare(str(path), str(tmp_path / "cache"), "launch", "x86_64")


def test_an_image_file_that_was_cut_short_is_named_before_it_is_mounted(tmp_path: Path) -> None:
    """The kernel said "wrong fs type, bad option, bad superblock"."""
    path, found = make_image(tmp_path, 3 * MIB)
    Path(blockmap.sidecar(str(path))).write_bytes(blockmap.encode(found))
    os.truncate(path, 2 * MIB)
    words = (
        f"the file has {2 * MIB} bytes, its block map is of {found.offset_bytes + found.size_bytes}: it was cut short"
    )
    with pytest.raises(BlockMapRefused, match=words):
        launch.prepare(str(path), str(tmp_path / "cache"), "launch", "x86_64")


def test_a_link_to_a_folder_of_the_system_is_followed(tmp_path: Path) -> None:
    path, found = make_image(tmp_path, 3 * MIB)
    (tmp_path / "link").symlink_to("/etc")
    sidecar = Path(blockmap.sidecar(str(path)))
    sidecar.write_bytes(blockmap.encode(msgspec.structs.replace(found, mount_at=str(tmp_path / "link"))))
    with pytest.raises(BlockMapRefused, match="/etc"):
        launch.prepare(str(path), str(tmp_path / "cache"), "launch", "x86_64")


def test_a_later_launch_fetches_hot_blocks_as_they_were_touched_and_the_rest_slowly_after_the_window() -> None:
    made = launch.plan(facts(hot=a_list(30, 3, 4, 20)), LIMITS)
    assert made.way == "hot"
    assert [run.start for run in made.hot] == [30, 3, 20]
    assert (made.hot_bytes, made.fetch_bytes) == (4 * MIB, 4 * MIB)
    assert made.background.width == 0, "nothing beside the start"
    assert 0 < made.after_window.width < 16
    assert made.after_window.bytes_per_s is not None


def test_hot_blocks_that_are_here_are_not_fetched_again() -> None:
    have = bytearray(COUNT)
    have[3] = have[4] = 1
    made = launch.plan(facts(hot=a_list(30, 3, 4), have=bytes(have)), LIMITS)
    assert made.hot == (BlockRun(30, 1, 0),)
    assert (made.hot_bytes, made.fetch_bytes) == (3 * MIB, MIB)


@pytest.mark.parametrize(("more", "served"), [({"remote": False}, False), ({"have": b"\x01" * COUNT}, True)])
def test_of_an_image_that_is_all_here_nothing_is_fetched_and_what_was_cached_is_verified_as_it_is_read(
    more: dict[str, object], served: bool
) -> None:
    made = launch.plan(facts(hot=a_list(1), **more), LIMITS)
    assert (made.way, made.served, made.record) == ("local", served, False)
    assert made.hot == () and made.background.width == made.after_window.width == 0


def test_where_the_disk_has_no_room_only_what_is_read_is_fetched() -> None:
    first = launch.plan(facts(free_bytes=10 * MIB), LIMITS)
    assert (first.way, first.background.width) == ("lazy", 0)
    assert "no room" in first.why
    later = launch.plan(facts(free_bytes=2 * MIB, hot=a_list(30, 3, 20)), LIMITS)
    assert [run.start for run in later.hot] == [30, 3], "those touched last do not fit"
    assert later.after_window.width == 0
    assert (first.unkept_bytes, later.unkept_bytes) == (COUNT * MIB, COUNT * MIB)
    assert launch.plan(facts(free_bytes=1 << 40), LIMITS).unkept_bytes == 0


def test_a_cache_without_room_is_named_with_its_numbers() -> None:
    assert shortage("/cache", 120 * MIB, 256 * MIB, 9 * MIB) == (
        "the cache /cache is full: 120 MiB are free there, 256 MiB of the disk are left to others, and 9 MiB of the image are"
        " not there yet: blocks are not kept, so this start and later ones are slower; free some space, or name another"
        " --image-cache folder"
    )
    assert shortage("/cache", 300 * MIB, 256 * MIB, 90 * MIB) == (
        "the cache /cache has no room for all of the image: 300 MiB are free there, 256 MiB of the disk are left to others, and"
        " 90 MiB of the image are not there yet: 44 MiB of them are kept, and the rest is fetched each time it is read; free"
        " some space, or name another --image-cache folder"
    )


MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 21 0:40 / /home rw - nfs4 server:/home rw
31 21 0:41 / /data/with\\040space rw - lustre 10.0.0.1@tcp:/fs rw
32 30 0:42 / /home/me/local rw - xfs /dev/vdb rw
33 21 0:43 / /mnt/s3 rw - fuse.s3fs s3fs rw
broken line
"""


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("/home/me/a.sqsh", True),
        ("/home/me/local/a.sqsh", False),
        ("/homes/a.sqsh", False),
        ("/data/with space/a.sqsh", True),
        ("/mnt/s3/a", True),
        ("/a", False),
        ("http://host/a.sqsh", True),
        ("file:///home/a.sqsh", True),
    ],
)
def test_an_image_on_another_machines_file_system_is_cached(url: str, remote: bool) -> None:
    assert launch.is_remote(url, MOUNTS) is remote


# fingerprints


def of(command: str, layout: record.Layout = "node") -> str:
    return record.fingerprint(command.split(), "cpython-3.11", layout)


@pytest.mark.parametrize(
    "command",
    [
        "train.py --lr 1e-4 --run 2024-10-02_11h",
        "/scratch/job-77/train.py --lr 3e-4 --run 2024-10-01_12h",
        "train.py --lr 3e-4 --run 2026-01-01_00h",
    ],
)
def test_the_same_program_with_other_numbers_is_the_same_launch(command: str) -> None:
    assert of(command) == of("train.py --lr 3e-4 --run 2024-10-01_12h")


def test_what_makes_another_launch() -> None:
    commands = ["train.py", "other.py", "train.py --compile", "train.py --model=llama", "train.py --model=gpt"]
    prints = [of(command) for command in commands]
    prints += [of("train.py", "nodes"), record.fingerprint(["train.py"], "cpython-3.12", "node")]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("word", "stable"),
    [
        ("--out=/tmp/x/run-7", "--out=run-#"),
        ("s3://bucket/data/c4?sig=abc", "s#://c#"),
        ("a1b2c3d4e5f6", "#"),
        ("4f2b0c6e-8d1a-4a6b-9c3d-1e2f3a4b5c6d", "#"),
        ("deadline", "deadline"),
        ("facade", "facade"),
        ("host7:29500", "host#:#"),
        ("/", ""),
    ],
)
def test_what_changes_from_run_to_run_is_left_out(word: str, stable: str) -> None:
    assert record.stable(word) == stable


@given(st.lists(st.text(max_size=50), max_size=10))
def test_any_command_line_has_a_fingerprint(argv: list[str]) -> None:
    assert len(record.fingerprint(argv, "cpython-3.11", "process")) == 32


def test_the_layout_of_a_world() -> None:
    assert [record.layout_of(*world) for world in ((1, 1), (8, 1), (16, 2), (2, 2))] == [
        "process",
        "node",
        "nodes",
        "nodes",
    ]


# recordings


def recording(ended: record.Ended, *quanta: int, window_s: float = 5.0) -> record.Recording:
    touches = tuple(Touch(quantum, n) for n, quantum in enumerate(quanta))
    return record.Recording(touches=touches, window_s=window_s, ended=ended)


def test_a_launch_that_died_early_makes_no_block_decay(tmp_path: Path) -> None:
    path, block_map = make_image(tmp_path, 4 * MIB)
    store, key = HotStore(str(path), str(tmp_path / "cache")), record.hot_key(block_map, "launch", "x86_64")
    assert record.keep(store, key, [recording("end")]) is None, "nothing was read"
    kept = record.keep(store, key, [recording("end", 1, 2)])
    assert kept is not None, "better than nothing"
    kept = record.keep(store, key, [recording("step", 1, 2, 9), recording("limit", 3), recording("end", 30)])
    assert kept is not None
    assert sum(each.count for each in kept[0].ranges) == 4
    assert record.keep(store, key, [recording("end", 1)]) is None
    assert store.load(key)[0] == kept[0]


# the window


def test_the_window_ends_once_with_the_first_step_the_limit_or_the_program() -> None:
    first = window.RecordingWindow(100.0, 60.0)
    assert first.look(101.0, stepped=False) is None
    assert first.look(102.0, stepped=True) == "step"
    assert first.look(103.0, stepped=True) is None
    assert window.RecordingWindow(100.0, 60.0).look(160.0, stepped=False) == "limit"
    assert window.RecordingWindow(100.0, 60.0).look(120.0, stepped=False, running=False) == "end"


class FakeServed:
    """An image that is served, without a server."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def status(self) -> Status | None:
        return None

    def touches(self) -> tuple[list[Touch], float]:
        return [Touch(0, 1), Touch(8, 2), Touch(16, 3), Touch(999, 4)], 2.5

    def close_window(self) -> None:
        self.calls.append("close")

    def background(self, width: int, bytes_per_s: float | None = None) -> None:
        self.calls.append((width, bytes_per_s))


def prepared(tmp_path: Path, hot: HotList | None) -> launch.Prepared:
    return launch.Prepared(
        image_url="http://origin/x.sqsh",
        cache_root=str(tmp_path),
        block_map=MAP,
        key=KEY,
        hot=hot,
        plan=launch.plan(facts(hot=hot), LIMITS),
        options=launch.ServeOptions(),
        problems=(),
    )


def test_after_the_window_the_rest_comes_and_the_hit_rate_is_known(tmp_path: Path) -> None:
    served = FakeServed()
    made, start = window.close(served, prepared(tmp_path, a_list(0, 1, 2, 3)), "step")
    assert served.calls == ["close", (launch.REST.width, launch.REST.bytes_per_s)]
    assert (made.window_s, len(made.touches), made.ended) == (2.5, 4, "step")
    assert (start.hit_rate, start.unused_rate) == (0.75, 0.25)
    assert start.hot_list_bytes == 4 * QUANTUM_BYTES
    assert "hit rate 75 %" in window.sentence(start)


def test_after_a_program_that_ended_nothing_is_fetched_any_more(tmp_path: Path) -> None:
    served = FakeServed()
    _made, start = window.close(served, prepared(tmp_path, None), "end")
    assert served.calls == ["close"]
    assert start.hit_rate is None


# facts


def test_two_launches_from_the_first_to_the_last_block(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    path, block_map = make_image(tmp_path / "origin", COUNT * MIB)
    path.with_name("train.sqsh.blocks.json").write_bytes(blockmap.encode(block_map))
    root = str(tmp_path / "cache")
    with ModelOrigin(tmp_path / "origin") as origin:
        url = f"{origin.url}train.sqsh"
        first = launch.prepare(url, root, "launch", "x86_64", limits=LIMITS)
        assert first.plan.way == "first"
        record.keep(first.store, first.key, [recording("step", 8, 16)])
        second = launch.prepare(url, root, "launch", "x86_64", limits=LIMITS)
        assert [run.start for run in second.plan.hot] == [1]
        assert second.plan.hot[0].count == 2
        assert launch.prepare(url, root, "another", "x86_64", limits=LIMITS).plan.way == "first"
    assert launch.prepare(url, root, "launch", "x86_64", limits=LIMITS).problems, (
        "the origin is gone; its map is remembered"
    )
    cache = Cache(root, block_map)
    for block in range(COUNT):
        cache.put(block, path.read_bytes()[block * MIB : (block + 1) * MIB])
    cache.close()
    assert launch.prepare(url, root, "launch", "x86_64", limits=LIMITS).plan.way == "local"


def test_an_image_without_a_map_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    with ModelOrigin(tmp_path / "origin") as origin, pytest.raises(BlockMapRefused, match="robust image build"):
        fetch_map(f"{origin.url}train.sqsh", str(tmp_path), StoreOptions())
    with pytest.raises(StoreError):
        fetch_map(f"{origin.url}train.sqsh", str(tmp_path), StoreOptions(connect_s=1.0))
    (tmp_path / "train.sqsh").write_bytes(b"no squashfs")
    with pytest.raises(Exception, match="squashfs"):
        fetch_map(str(tmp_path / "train.sqsh"), str(tmp_path), StoreOptions())
