"""Units are fetched once, kept within a bound, and fetched ahead of a reader that goes straight on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from robust_run.ckpt_io.reading import Wanted
from robust_run.ckpt_io.rules.types import LogicalFile, Manifest
from robust_run.ckpt_io.views.cache import UnitCache, UnitKey
from robust_run.ckpt_io.views.reader import Track, ViewReader
from robust_run.ckpt_io.views.types import whole_file

UNIT = 1 << 20


class Memory:
    """A source whose bytes are in memory, and that counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        file = LogicalFile(name="x", size_bytes=len(data), unit_bytes=UNIT)
        self.manifest = Manifest(uuid="0" * 32, created_s=0.0, files=(file,))
        self.read_units: list[int] = []
        self.failures = 0

    def read(self, wanted: list[Wanted]) -> None:
        for want in wanted:
            self.read_units.append(want.offset_bytes // UNIT)
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is on fire")
            want.buffer[:] = self.data[want.offset_bytes : want.offset_bytes + len(want.buffer)]

    def close(self) -> None: ...


@pytest.fixture
def cache() -> Iterator[UnitCache]:
    made = UnitCache(32 * UNIT)
    yield made
    made.close()


def read(reader: ViewReader, offset: int, size: int, track: Track | None = None) -> bytes:
    buffer = bytearray(size)
    got = reader.read_into(offset, memoryview(buffer), track or Track())
    return bytes(buffer[:got])


def test_small_reads_of_a_unit_fetch_it_once(cache: UnitCache) -> None:
    source = Memory(bytes(range(256)) * (UNIT // 128))
    reader = ViewReader(source, whole_file(0, source.manifest.files[0]), cache)
    assert read(reader, 10, 20) == source.data[10:30]
    assert read(reader, UNIT - 5, 10) == source.data[UNIT - 5 : UNIT + 5]
    assert read(reader, 2 * UNIT - 3, 10) == source.data[-3:]
    assert read(reader, 2 * UNIT, 10) == b""
    assert sorted(source.read_units) == [0, 1]


def test_who_reads_straight_on_finds_units_fetched_ahead(cache: UnitCache) -> None:
    source = Memory(bytes(40 * UNIT))
    reader = ViewReader(source, whole_file(0, source.manifest.files[0]), cache)
    track = Track()
    for at in range(0, 2 * UNIT, UNIT // 4):
        read(reader, at, UNIT // 4, track)
    until_s = time.monotonic() + 60
    while max(source.read_units) < 3:
        assert time.monotonic() < until_s, source.read_units
        time.sleep(0.01)
    cache.close()  # what is being fetched is
    assert len(source.read_units) == len(set(source.read_units))


def test_who_jumps_fetches_nothing_ahead(cache: UnitCache) -> None:
    source = Memory(bytes(40 * UNIT))
    reader = ViewReader(source, whole_file(0, source.manifest.files[0]), cache)
    track = Track()
    for unit in (30, 3, 20, 11):
        read(reader, unit * UNIT, 1000, track)
    cache.close()
    assert source.read_units == [30, 3, 20, 11]


def test_a_large_read_goes_past_the_cache(cache: UnitCache) -> None:
    source = Memory(bytes(range(256)) * (20 * UNIT // 256))
    reader = ViewReader(source, whole_file(0, source.manifest.files[0]), cache)
    assert read(reader, 3, 18 * UNIT) == source.data[3 : 3 + 18 * UNIT]
    assert cache.loads == 0


def test_a_failure_is_told_to_who_asks_and_tried_again_for_the_next(cache: UnitCache) -> None:
    source = Memory(bytes(UNIT))
    source.failures = 1
    reader = ViewReader(source, whole_file(0, source.manifest.files[0]), cache)
    with pytest.raises(OSError, match="on fire"):
        read(reader, 0, 10)
    assert read(reader, 0, 10) == bytes(10)


def test_memory_is_bounded_and_what_is_lent_stays(cache: UnitCache) -> None:
    small = UnitCache(4 * UNIT)

    def fill(number: int):
        def load(buffer: memoryview) -> None:
            buffer[:] = bytes([number]) * len(buffer)

        return load

    with small.pinned(UnitKey("u", 0, 0), UNIT, fill(0)) as lent:
        for number in range(1, 50):
            with small.pinned(UnitKey("u", 0, number), UNIT, fill(number)) as unit:
                assert unit[0] == unit[-1] == number
        assert lent[0] == lent[-1] == 0
    assert small.held_bytes <= 4 * UNIT
    small.close()


def test_two_who_ask_for_a_unit_at_once_fetch_it_once(cache: UnitCache) -> None:
    asked, go = threading.Event(), threading.Event()

    def load(buffer: memoryview) -> None:
        asked.set()
        assert go.wait(60)
        buffer[:] = b"x" * len(buffer)

    def ask() -> bytes:
        with cache.pinned(UnitKey("u", 0, 0), 8, load) as unit:
            return bytes(unit)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask)
        assert asked.wait(60)
        second = pool.submit(ask)
        go.set()
        assert first.result(60) == second.result(60) == b"x" * 8
    assert cache.loads == 1
