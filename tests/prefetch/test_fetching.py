"""Reads through the fetcher: served from the cache, from sources that work, and never for ever waiting for those that do not."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest
from prefetch.images import SMALL_BLOCK, make_image
from prefetch.private_mounts import privately

from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.reads import MOST_HELD_BYTES, ImageRead, Reads
from robust_run.prefetch.fetching.sources import BlockSource, split
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.rules.types import BlockRun, FetchLimits, Priority
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import NotFound, Unavailable

COUNT = 16
#: So patient that nothing is asked for twice because the machine is busy.
LIMITS = FetchLimits(
    width=4,
    demand_width=2,
    run_bytes=4 * SMALL_BLOCK,
    stretch_bytes=SMALL_BLOCK,
    first_small=0,
    keep_free_bytes=0,
    hedge_after_s=60.0,
)
HASTY = msgspec.structs.replace(LIMITS, hedge_after_s=0.05)
WAIT_S = 60.0

Behaviour = Callable[[int, Sequence[memoryview], Cancellation], None]


class Scripted:
    """A source that has the image, and does what it is told."""

    def __init__(self, name: str, data: bytes, behave: Behaviour | None = None, wait_s: float | None = 0.0) -> None:
        self.name, self._data, self._behave, self.wait_s = name, data, behave, wait_s
        self.asked: list[tuple[int, int]] = []

    def offers(self, start_block: int, count: int, priority: Priority) -> float | None:
        return self.wait_s

    def read_into(self, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation) -> None:
        self.asked.append((offset_bytes // SMALL_BLOCK, len(buffers)))
        position = offset_bytes
        for buffer in buffers:
            buffer[:] = self._data[position : position + len(buffer)]
            position += len(buffer)
        if self._behave is not None:
            self._behave(offset_bytes, buffers, cancel)


def lie(_offset: int, buffers: Sequence[memoryview], _cancel: Cancellation) -> None:
    buffers[0][17] ^= 1


def be_silent(_offset: int, _buffers: Sequence[memoryview], cancel: Cancellation) -> None:
    over = threading.Event()
    with cancel.calling(over.set):
        assert over.wait(WAIT_S)
    raise Unavailable("silent", "", "was called off")


def be_gone(_offset: int, _buffers: Sequence[memoryview], _cancel: Cancellation) -> None:
    raise NotFound("gone", "", "no such file or folder")


def be_unreachable(_offset: int, _buffers: Sequence[memoryview], _cancel: Cancellation) -> None:
    raise Unavailable("far", "", "no route to host")


def have_a_bug(_offset: int, _buffers: Sequence[memoryview], _cancel: Cancellation) -> None:
    raise ZeroDivisionError


class Bench:
    """An image, its cache, and fetchers over sources of a test."""

    def __init__(self, folder: Path) -> None:
        path, self.map = make_image(folder, COUNT * SMALL_BLOCK - 100, block_bytes=SMALL_BLOCK)
        self.data = path.read_bytes()
        self.root = folder / "cache"
        self._open: list[tuple[Fetcher, Cache]] = []

    def fetcher(self, *sources: BlockSource, limits: FetchLimits = LIMITS) -> Fetcher:
        cache = Cache(str(self.root), self.map)
        fetcher = Fetcher(self.map, cache, sources, limits)
        fetcher.start()
        self._open.append((fetcher, cache))
        return fetcher

    def close(self) -> None:
        for fetcher, cache in self._open:
            fetcher.stop(WAIT_S)
            cache.close()


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def read(fetcher: Fetcher, offset: int, size: int) -> tuple[bytes | None, str]:
    result: Future[tuple[bytes | None, str]] = Future()
    fetcher.read(offset, size, lambda data, reason: result.set_result((data, reason)))
    return result.result(WAIT_S)


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_a_read_over_several_blocks_and_the_end(bench: Bench) -> None:
    origin = Scripted("origin", bench.data)
    fetcher = bench.fetcher(origin)
    assert read(fetcher, SMALL_BLOCK - 5, SMALL_BLOCK + 10) == (bench.data[SMALL_BLOCK - 5 : 2 * SMALL_BLOCK + 5], "")
    assert sorted(origin.asked) == [(0, 1), (1, 1), (2, 1)]
    assert read(fetcher, len(bench.data) - 3, 100) == (bench.data[-3:], "")
    assert read(fetcher, len(bench.data) + 3, 100) == (b"", "")
    asked = len(origin.asked)
    assert read(fetcher, 0, 3 * SMALL_BLOCK)[0] == bench.data[: 3 * SMALL_BLOCK]
    assert len(origin.asked) == asked
    counts = fetcher.counts()
    assert (counts.reads, counts.waited, counts.failed) == (4, 2, 0)


@pytest.mark.parametrize("behave", [lie, be_gone, be_unreachable, have_a_bug])
def test_a_block_that_one_source_does_not_give_comes_from_another(bench: Bench, behave: Behaviour) -> None:
    peer, origin = Scripted("peer", bench.data, behave), Scripted("origin", bench.data)
    fetcher = bench.fetcher(peer, origin)
    assert read(fetcher, 0, 100) == (bench.data[:100], "")
    assert peer.asked == [(0, 1)]
    assert any("peer" in problem for problem in fetcher.counts().problems)


def test_a_wrong_block_never_enters_the_cache(bench: Bench) -> None:
    fetcher = bench.fetcher(Scripted("origin", bench.data, lie))
    data, reason = read(fetcher, 0, 100)
    assert data is None
    assert reason.startswith("origin sends wrong bytes: it is damaged there")
    cache = Cache(str(bench.root), bench.map)
    assert cache.present() == 0
    cache.close()
    assert fetcher.counts().sources[0].wrong_blocks == LIMITS.tries
    assert fetcher.counts().failed == 1


def test_a_silent_source_is_overtaken_by_another(bench: Bench) -> None:
    fetcher = bench.fetcher(Scripted("peer", bench.data, be_silent), Scripted("origin", bench.data), limits=HASTY)
    assert read(fetcher, 0, 100) == (bench.data[:100], "")


def test_a_read_that_nobody_serves_ends_with_the_reason(bench: Bench) -> None:
    limits = FetchLimits(width=1, demand_width=1, read_limit_s=3.0, request_limit_s=0.2, keep_free_bytes=0)
    fetcher = bench.fetcher(Scripted("origin", bench.data, be_silent), limits=limits)
    data, reason = read(fetcher, 0, 100)
    assert data is None
    assert "origin" in reason
    assert read(fetcher, 0, 100)[0] is None, "and the next one does so too"


def test_a_block_that_was_given_up_is_refused_at_once_when_the_kernel_asks_page_by_page(bench: Bench) -> None:
    origin = Scripted("origin", bench.data, lie)
    fetcher = bench.fetcher(origin)
    _data, reason = read(fetcher, 0, 4096)
    asked = len(origin.asked)
    for page in range(1, 16):
        assert read(fetcher, page * 4096, 4096) == (None, reason)
    assert len(origin.asked) == asked


def test_prefetched_runs_are_there_when_they_are_read(bench: Bench) -> None:
    origin = Scripted("origin", bench.data)
    fetcher = bench.fetcher(origin)
    assert fetcher.prefetch([BlockRun(4, 8), BlockRun(0, 2)]) == 10
    until(lambda: fetcher.counts().hot_left == 0)
    assert sorted(origin.asked) == [(0, 2), (4, 4), (8, 4)]
    assert read(fetcher, 4 * SMALL_BLOCK, 8 * SMALL_BLOCK)[0] == bench.data[4 * SMALL_BLOCK : 12 * SMALL_BLOCK]
    assert fetcher.counts().waited == 0


def test_the_background_fetches_all_the_rest(bench: Bench) -> None:
    fetcher = bench.fetcher(Scripted("origin", bench.data))
    fetcher.background(2, None)
    cache = Cache(str(bench.root), bench.map)
    until(lambda: cache.complete)
    assert Path(cache.path).read_bytes() == bench.data
    cache.close()


def test_a_block_that_vanished_from_the_cache_is_fetched_again(bench: Bench) -> None:
    origin = Scripted("origin", bench.data)
    fetcher = bench.fetcher(origin)
    assert read(fetcher, 0, 100)[0] == bench.data[:100]
    cache = Cache(str(bench.root), bench.map)
    Path(cache.path).write_bytes(b"")
    assert read(fetcher, 0, 100) == (bench.data[:100], "")
    assert origin.asked == [(0, 1), (0, 1)]
    cache.close()


def test_what_a_stopping_fetcher_owes_is_answered(bench: Bench) -> None:
    fetcher = bench.fetcher(Scripted("origin", bench.data, be_silent))
    answers: list[tuple[bytes | None, str]] = []
    fetcher.read(0, 10 * SMALL_BLOCK, lambda data, reason: answers.append((data, reason)))
    fetcher.stop(WAIT_S)
    assert answers == [(None, "the block server is stopping")]


@privately
def test_with_a_full_disk_blocks_are_passed_through(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(bench.root)], check=True, timeout=20)
    origin = Scripted("origin", bench.data)
    fetcher = bench.fetcher(origin)
    for index in range(COUNT):
        offset = index * SMALL_BLOCK + 7
        assert read(fetcher, offset, SMALL_BLOCK)[0] == bench.data[offset : offset + SMALL_BLOCK]
    assert any("takes no block (No space left on device)" in problem for problem in fetcher.counts().problems)
    fetcher.background(2, None)
    fetcher.prefetch([BlockRun(0, COUNT)])
    assert read(fetcher, 0, len(bench.data))[0] == bench.data
    bench.close()


def test_space_is_left_to_others(bench: Bench) -> None:
    greedy = FetchLimits(width=2, demand_width=2, keep_free_bytes=1 << 60)
    fetcher = bench.fetcher(Scripted("origin", bench.data), limits=greedy)
    until(lambda: fetcher.counts().passing_through)
    assert read(fetcher, 0, 100)[0] == bench.data[:100]
    cache = Cache(str(bench.root), bench.map)
    assert cache.present() == 0
    cache.close()


@pytest.mark.parametrize(
    ("url", "folder", "name"),
    [
        ("hdfs:///images/i.sif", "hdfs:///images", "i.sif"),
        ("https://h/a/b.sqsh", "https://h/a", "b.sqsh"),
        ("https://h/b.sqsh?sig=1", "https://h/?sig=1", "b.sqsh"),
        ("/data/b.sqsh", "/data", "b.sqsh"),
        ("b.sqsh", ".", "b.sqsh"),
        ("hdfs://nn:9000/x/y.sqsh", "hdfs://nn:9000/x", "y.sqsh"),
    ],
)
def test_an_image_is_a_name_in_a_folder(url: str, folder: str, name: str) -> None:
    assert split(url) == (folder, name)


def test_what_is_held_while_nothing_can_be_kept_is_limited_by_bytes_however_small_blocks_are() -> None:
    reads, small, large = Reads(), bytes(1 << 10), bytes(MOST_HELD_BYTES // 2)

    def waits_for(block: int) -> bool:
        read = ImageRead(0, 1, lambda _data, _why: None, 0.0, {block}, {})
        return bool(reads.wait(read, lambda _block: False))

    for block in range(1000):
        reads.arrived((), {block: small})
    assert not waits_for(0)
    reads.arrived((), {5000: large})
    reads.arrived((), {5000: large})
    assert not waits_for(0), "what came again counts once"
    reads.arrived((), {5001: large})
    assert [waits_for(block) for block in (0, 999, 5000, 5001)] == [True, True, False, False]
    reads.let_go()
    reads.arrived((), {1: large})
    assert [waits_for(block) for block in (1, 5001)] == [False, True]
