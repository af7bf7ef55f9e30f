"""What lies in the cache is verified whenever it is read: what was damaged there is fetched again, said, and never served."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefetch.images import SMALL_BLOCK, make_image
from prefetch.private_mounts import privately
from prefetch.test_fetching import (
    COUNT,
    LIMITS,
    WAIT_S,
    Scripted,
    be_unreachable,
    lie,
    read,
    until,
)

from robust_run.prefetch import blockmap
from robust_run.prefetch.bringing import bring
from robust_run.prefetch.cache import BlocksWrongError, Cache
from robust_run.prefetch.fetching.repairs import Repairs
from robust_run.prefetch.fetching.sources import BlockSource
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.room import Room
from robust_run.prefetch.rules.types import BlockRun, FetchLimits

BOOT, NEXT_BOOT = b"1" * 36, b"2" * 36
PIECE = 64 << 10
#: A block has several pieces.
BLOCK = 4 * PIECE


class Bench:
    """An image of which all is in the cache, and fetchers on it."""

    def __init__(self, folder: Path) -> None:
        path, self.map = make_image(folder, 5 * BLOCK - 1234, block_bytes=BLOCK)
        self.data = path.read_bytes()
        self.root = folder / "cache"
        self.notes: list[str] = []
        self.troubles: list[str] = []
        self._open: list[tuple[Fetcher, Cache]] = []
        cache = Cache(str(self.root), self.map)
        for index in range(self.map.blocks):
            assert cache.put(index, self.block(index))
        self.folder = Path(cache.folder)
        cache.close()

    def block(self, index: int) -> bytes:
        return self.data[index * BLOCK : (index + 1) * BLOCK]

    def damage(self, offset: int, data: bytes, name: str = "image") -> None:
        with (self.folder / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def fetcher(self, *sources: BlockSource, limits: FetchLimits = LIMITS, cache: Cache | None = None) -> Fetcher:
        cache = cache or Cache(str(self.root), self.map)
        tell = lambda sentence, _reason: self.troubles.append(sentence)  # noqa: E731
        fetcher = Fetcher(self.map, cache, sources, limits, tell=tell, note=self.notes.append)
        fetcher.start()
        self._open.append((fetcher, cache))
        return fetcher

    def close(self) -> None:
        while self._open:
            fetcher, cache = self._open.pop()
            fetcher.stop(WAIT_S)
            cache.close()


class Origin(Scripted):
    """An origin that has blocks of this size."""

    def read_into(self, offset_bytes: int, buffers: object, cancel: object) -> None:
        super().read_into(offset_bytes, buffers, cancel)  # type: ignore[arg-type]
        self.asked[-1] = (offset_bytes // BLOCK, 1)


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def all_of(fetcher: Fetcher, bench: Bench) -> bytes:
    parts = []
    for offset in range(0, len(bench.data), 3 * PIECE + 17):
        data, reason = read(fetcher, offset, 3 * PIECE + 17)
        assert data is not None, reason
        parts.append(data)
    return b"".join(parts)


# the cache


def test_a_block_that_was_altered_is_found_when_it_is_read(bench: Bench) -> None:
    bench.damage(BLOCK + 2 * PIECE + 5, b"x" * 64)
    cache = Cache(str(bench.root), bench.map)
    assert cache.read(0, BLOCK) == bench.block(0)
    with pytest.raises(BlocksWrongError) as caught:
        cache.read(BLOCK - 10, 3 * PIECE)
    assert caught.value.blocks == (1,)
    assert cache.read(2 * BLOCK, 100) == bench.block(2)[:100]
    assert cache.sift() == [1]
    assert [cache.have(index) for index in range(5)] == [True, False, True, True, True]
    cache.close()


@pytest.mark.parametrize("damage", ["altered", "zeros", "gone", "cut short", "too long"])
def test_sums_that_are_wrong_cost_no_block(bench: Bench, damage: str) -> None:
    sums = bench.folder / "sums"
    right = sums.read_bytes()
    made = {
        "altered": b"\xff" * len(right),
        "zeros": bytes(len(right)),
        "cut short": right[:7],
        "too long": right + b"x",
    }
    sums.unlink() if damage == "gone" else sums.write_bytes(made[damage])
    cache = Cache(str(bench.root), bench.map)
    assert cache.read(100, len(bench.data) - 200) == bench.data[100:-100]
    assert sums.read_bytes() == right, "what was found out is noted"
    assert cache.sift() == cache.verify() == []
    cache.close()


def test_verify_does_not_believe_the_sums(bench: Bench) -> None:
    from robust_run.prefetch.cache_files import Sums

    wrong = bytes(BLOCK)
    bench.damage(2 * BLOCK, wrong)
    with (bench.folder / "sums").open("r+b") as file:
        Sums(file.fileno()).note(2 * BLOCK, wrong)
    cache = Cache(str(bench.root), bench.map)
    assert cache.verify() == [2]
    cache.close()


def test_states_that_cannot_be_are_no_blocks(bench: Bench) -> None:
    bench.damage(64, b"\x07\xff\x01\x00\x03", "have")
    cache = Cache(str(bench.root), bench.map)
    assert list(cache.scan()) == [0, 0, 1, 0, 0]
    assert [cache.have(index) for index in range(5)] == [False, False, True, False, False]
    cache.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_happens_to_the_files_no_wrong_byte_is_read(bench: Bench, data: st.DataObject) -> None:
    cache = Cache(str(bench.root), bench.map)
    for index in range(bench.map.blocks):
        cache.put(index, bench.block(index))
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(["image", "image", "sums", "have"]))
        size = (bench.folder / name).stat().st_size
        offset = data.draw(st.integers(0, size))
        if data.draw(st.booleans()):
            bench.damage(offset, data.draw(st.binary(min_size=1, max_size=64)), name)
        else:
            os.truncate(bench.folder / name, offset)
    for _ in range(3):
        offset = data.draw(st.integers(0, len(bench.data) - 1))
        size = data.draw(st.integers(1, len(bench.data) - offset))
        try:
            assert cache.read(offset, size) == bench.data[offset : offset + size]
        except BlocksWrongError as error:
            assert error.blocks
    cache.close()


# the fetcher


def test_a_damaged_block_is_fetched_again_and_said(bench: Bench) -> None:
    for index in (1, 2, 4):
        bench.damage(index * BLOCK + 77, b"x" * 64)
    origin = Origin("http://store/train.sqsh", bench.data)
    fetcher = bench.fetcher(origin)
    assert all_of(fetcher, bench) == bench.data
    assert sorted({block for block, _count in origin.asked}) == [1, 2, 4]
    first = f"block 1 of train.sqsh in the cache {bench.root} did not match its digest; fetched again"
    assert bench.notes == [first]
    assert bench.troubles == []
    assert fetcher.counts().repaired == 3
    assert all_of(fetcher, bench) == bench.data
    assert len(origin.asked) == 3, "it was put right in the cache"
    bench.close()
    assert (bench.folder / "image").read_bytes() == bench.data


def test_a_file_that_was_cut_short_or_replaced_under_its_readers_costs_no_byte(bench: Bench) -> None:
    origin = Origin("http://store/train.sqsh", bench.data)
    fetcher = bench.fetcher(origin)
    os.truncate(bench.folder / "image", 2 * BLOCK + 5)
    assert all_of(fetcher, bench) == bench.data
    (bench.folder / "image").rename(bench.folder / "old")
    (bench.folder / "image").write_bytes(b"another")
    assert all_of(fetcher, bench) == bench.data
    bench.close()


def test_a_damaged_block_is_not_served_where_no_source_has_it_and_the_reason_names_the_cache(bench: Bench) -> None:
    bench.damage(BLOCK + 77, b"x" * 64)
    limits = FetchLimits(width=1, demand_width=1, read_limit_s=1.0, keep_free_bytes=0)
    fetcher = bench.fetcher(Origin("http://far/train.sqsh", bench.data, be_unreachable), limits=limits)
    assert read(fetcher, 0, 100) == (bench.data[:100], "")
    data, reason = read(fetcher, BLOCK, 100)
    assert data is None
    assert "no route to host" in reason
    assert reason.endswith(f"; what the cache {bench.root} had of it did not match its digest")
    assert bench.troubles == [f"block 1 could not be read: {reason}"]
    assert bench.notes == []
    bench.close()


def test_a_damaged_block_that_the_origin_has_wrong_too_is_not_served(bench: Bench) -> None:
    bench.damage(BLOCK + 77, b"x" * 64)
    fetcher = bench.fetcher(Origin("http://store/train.sqsh", bench.data, lie))
    data, reason = read(fetcher, BLOCK, 100)
    assert data is None
    assert "sends wrong bytes" in reason and str(bench.root) in reason
    bench.close()


class Spoiling(Cache):
    """A cache on a disk that spoils all that is written to it from now on."""

    def put(self, index: int, block: bytes | bytearray | memoryview) -> bool:
        kept = super().put(index, block)
        os.pwrite(self._image, b"spoilt", index * self.block_map.block_bytes + 9)
        return kept


class Failing(Cache):
    """A cache on a disk of which a part cannot be read any more."""

    bad: frozenset[int] = frozenset({1, 2})

    def _right_block(self, index: int, *, by_map: bool = False) -> bytes | None:
        self._fail(index)
        return super()._right_block(index, by_map=by_map)

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        for index in range(offset_bytes // BLOCK, (offset_bytes + size_bytes - 1) // BLOCK + 1):
            self._fail(index)
        return super().read(offset_bytes, size_bytes)

    def _fail(self, index: int) -> None:
        if index in self.bad:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("kind", [Spoiling, Failing])
def test_a_disk_that_spoils_or_fails_is_read_past(bench: Bench, kind: type[Cache]) -> None:
    bench.damage(BLOCK + 9, b"spoilt")
    origin = Origin("http://store/train.sqsh", bench.data)
    fetcher = bench.fetcher(origin, cache=kind(str(bench.root), bench.map))
    assert all_of(fetcher, bench) == bench.data
    assert all_of(fetcher, bench) == bench.data
    assert bench.troubles == []
    assert len(bench.notes) == 1, "however often it happens, it is not said for each"
    if kind is Failing:
        assert "could not be read (Input/output error); fetched again" in bench.notes[0]
    bench.close()


class Refusing(Cache):
    """A cache that became read-only: what was written to it before can be read."""

    def put(self, index: int, block: bytes | bytearray | memoryview) -> bool:
        self.failure = "Read-only file system"
        return False

    def forget(self, index: int) -> None:
        self._known[index] = 0
        self._lost.add(index)


def test_where_the_cache_became_read_only_a_damaged_block_is_passed_through_and_that_is_said(bench: Bench) -> None:
    bench.damage(BLOCK + 77, b"x" * 64)
    fetcher = bench.fetcher(Origin("http://store/train.sqsh", bench.data), cache=Refusing(str(bench.root), bench.map))
    assert all_of(fetcher, bench) == bench.data
    assert any("block 1 of train.sqsh" in note and "fetched again, and not kept" in note for note in bench.notes)
    assert any(
        f"the cache {bench.root} takes no block (Read-only file system): blocks are not kept" in note
        for note in bench.notes
    )
    assert all_of(fetcher, bench) == bench.data
    bench.close()


@pytest.mark.parametrize("_round", range(3))
def test_two_servers_that_find_the_same_damage_put_it_right_together(bench: Bench, _round: int) -> None:
    for index in range(bench.map.blocks):
        bench.damage(index * BLOCK + 3, b"x" * 64)
    one, other = (bench.fetcher(Origin("http://store/train.sqsh", bench.data)) for _ in range(2))
    answers: list[bytes | None] = []
    for offset in range(0, len(bench.data), PIECE):
        for fetcher in (one, other):
            fetcher.read(offset, PIECE, lambda data, _reason: answers.append(data))
    until(lambda: len(answers) == 2 * len(range(0, len(bench.data), PIECE)))
    assert None not in answers
    assert sum(len(each or b"") for each in answers) == 2 * len(bench.data)
    bench.close()
    assert (bench.folder / "image").read_bytes() == bench.data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_reads_are_right_while_the_files_are_damaged_under_them(bench: Bench, chance: random.Random) -> None:
    fetcher = bench.fetcher(Origin("http://store/train.sqsh", bench.data))
    for _ in range(20):
        name = chance.choice(["image", "image", "sums", "have"])
        bench.damage(
            chance.randrange((bench.folder / name).stat().st_size), chance.randbytes(chance.randint(1, 99)), name
        )
        offset = chance.randrange(len(bench.data))
        size = chance.randint(1, 2 * BLOCK)
        assert read(fetcher, offset, size) == (bench.data[offset : offset + size], "")
    bench.close()


def test_prefetching_verifies_what_is_here(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin/train.sqsh").write_bytes(bench.data)
    bench.damage(3 * BLOCK, b"x" * 64)
    done = bring(str(tmp_path / "origin/train.sqsh"), bench.map, str(bench.root), [BlockRun(0, bench.map.blocks)])
    assert (done.damaged, done.missing, done.fetched_bytes) == (1, 0, BLOCK)
    assert (bench.folder / "image").read_bytes() == bench.data


# a cache without room


@privately
def test_that_a_disk_fills_up_is_said_with_its_numbers(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path / "disk")], check=True, timeout=20)
    path, block_map = make_image(tmp_path, COUNT * SMALL_BLOCK, block_bytes=SMALL_BLOCK)
    notes: list[str] = []
    cache = Cache(str(tmp_path / "disk/cache"), block_map)
    limits = FetchLimits(width=2, demand_width=2, stretch_bytes=SMALL_BLOCK, keep_free_bytes=4 << 20)
    fetcher = Fetcher(block_map, cache, [Scripted("origin", path.read_bytes())], limits, note=notes.append)
    fetcher.start()
    assert read(fetcher, 0, 100)[0] == path.read_bytes()[:100]
    (tmp_path / "disk/others").write_bytes(bytes(6 << 20))
    until(lambda: bool(notes))
    assert notes[0].startswith(
        f"the cache {tmp_path}/disk/cache is full: 1 MiB are free there, 4 MiB of the disk are left to"
    )
    assert notes[0].endswith(
        "blocks are not kept, so this start and later ones are slower; free some space, or name another --image-cache folder"
    )
    assert fetcher.counts().passing_through
    fetcher.stop()
    cache.close()


MIB = 1 << 20


def test_room_is_said_once_and_only_where_something_is_missing() -> None:
    room = Room("/cache", 256 * MIB)
    assert room.looked(1 << 40, 9, 0.0) == ""
    assert "120 MiB are free there, 256 MiB of the disk are left to others, and 9 MiB of the image" in room.looked(
        120 * MIB, 9 * MIB, 1.0
    )
    assert not room.keeping
    assert room.looked(100 * MIB, 9 * MIB, 2.0) == ""
    assert room.looked(300 * MIB, 9 * MIB, 3.0) == ""
    assert not room.keeping, "a little more than the reserve is not enough"
    room.looked(400 * MIB, 9 * MIB, 4.0)
    assert room.keeping
    assert room.looked(100 * MIB, 9 * MIB, 5.0) == "", "it was said a moment ago"
    other = Room("/cache", 256 * MIB)
    assert other.looked(0, 0, 0.0) == "", "nothing is missing: who minds?"
    assert not other.keeping


def test_a_disk_that_refuses_is_tried_again_later() -> None:
    room = Room("/cache", 0)
    assert "takes no block (Disk quota exceeded)" in room.refused("Disk quota exceeded", MIB, 0.0)
    room.looked(1 << 40, MIB, 29.0)
    assert not room.keeping
    room.looked(1 << 40, MIB, 31.0)
    assert room.keeping


# what is said of damage


def test_one_sentence_at_once_and_the_others_counted_ever_more_rarely() -> None:
    repairs = Repairs("https://store/a/train.sqsh?sig=1", "/cache")
    for block in range(200):
        repairs.found(block, "did not match its digest")
    assert repairs.came(0, 0.0, kept=True) == (
        "block 0 of train.sqsh in the cache /cache did not match its digest; fetched again"
    )
    assert [repairs.came(block, 1.0, kept=True) for block in range(1, 164)] == [""] * 163
    assert repairs.due(9.0) == ""
    assert repairs.due(10.0) == (
        "163 more blocks of train.sqsh in the cache /cache, damaged there: 1, 2, 3, 4, 5, ...; fetched again"
    )
    assert repairs.due(10.1) == ""
    assert repairs.came(164, 11.0, kept=True) == ""
    assert repairs.due(29.0) == ""
    assert "1 more block of" in repairs.due(30.0)
    assert repairs.count == 165
    assert repairs.is_wrong(180) and not repairs.is_wrong(164)


def test_why_a_read_fails_has_what_the_cache_had() -> None:
    repairs = Repairs("train.sqsh", "/cache")
    repairs.found(7, "did not match its digest")
    assert repairs.reason(7, "nobody answers") == (
        "nobody answers; what the cache /cache had of it did not match its digest"
    )
    assert repairs.reason(8, "nobody answers") == "nobody answers"


ANOTHER = """
import sys
from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
cache = Cache(sys.argv[1], blockmap.decode(open(sys.argv[2], "rb").read()))
print(cache.sift())
"""


def test_what_another_process_put_is_verified_by_its_sums(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_bytes(blockmap.encode(bench.map))
    bench.damage(0, b"x")
    argv = [sys.executable, "-c", ANOTHER, str(bench.root), str(tmp_path / "map.json")]
    assert subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip() == "[0]"
