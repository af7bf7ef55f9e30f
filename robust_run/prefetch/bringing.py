"""Blocks without a mount: bring them into the cache, hold a whole image against its map, ask the servers that run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import ControlFailed
from robust_run.prefetch.fetching.sources import origin
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.inspecting import lists_of
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchLimits, Status
from robust_run.prefetch.server import control
from robust_run.store.cancelling import Cancellation

_LOOK_EVERY_S = 0.05
#: Without a new block for so long, what is missing is given up.
_SILENCE_S = 60.0


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """What came."""

    fetched_bytes: int
    kept_bytes: int
    """Of what was asked for, what was here before."""
    missing: int
    """Blocks that did not come."""
    damaged: int
    """Blocks that were here and not what they must be; they were fetched again, like those that were not here."""
    took_s: float
    problems: tuple[str, ...]


def hot_runs(image: str, cache_root: str, block_map: BlockMap) -> list[BlockRun]:
    """Return what recorded starts of an image read, of this machine's kind, those of the list with the most launches first."""
    lists, _problems = lists_of(image, cache_root, blockmap.identity(block_map))
    seen: set[int] = set()
    runs: list[BlockRun] = []
    for each in lists:
        if each.key.machine == os.uname().machine:
            runs += hotlist.plan(each, block_map, seen.__contains__)
            seen |= set(hotlist.hot_blocks(each, block_map))
    return runs


def bring(
    image: str,
    block_map: BlockMap,
    cache_root: str,
    runs: Sequence[BlockRun],
    *,
    width: int = 32,
    progress: Callable[[int], None] = lambda _count: None,
    silence_s: float = _SILENCE_S,
) -> Brought:
    """Fetch runs into the cache and return when they are there, or cannot be had. What is here already is verified.

    Raises `CacheRefused`, `UserError`.
    """
    limits = FetchLimits(width=width)
    cache = Cache(cache_root, block_map)
    began_s = time.monotonic()
    source = origin(image, block_map.offset_bytes, limits)
    wanted = {block for run in runs for block in range(run.start, min(run.start + run.count, block_map.blocks))}
    damaged = cache.sift(sorted(wanted))
    fetcher = Fetcher(block_map, cache, [source], limits)
    here = {block for block in wanted if cache.have(block)}
    kept = sum(map(block_map.block_size_bytes, here))
    progress(kept)
    try:
        fetcher.start()
        fetcher.prefetch(runs)
        left, last_s, pause = wanted - here, time.monotonic(), threading.Event()
        while left and time.monotonic() - last_s < silence_s:
            pause.wait(_LOOK_EVERY_S)
            new = {block for block in left if cache.have(block)}
            progress(sum(map(block_map.block_size_bytes, new)))
            left -= new
            counts = fetcher.counts()
            if new:
                last_s = time.monotonic()
            elif not counts.hot_left or counts.passing_through:
                left = {block for block in left if not cache.have(block)}
                break
        counts = fetcher.counts()
    finally:
        fetcher.stop()
        source.close()
        cache.close()
    fetched = sum(map(block_map.block_size_bytes, wanted - here - left))
    return Brought(
        fetched_bytes=fetched,
        kept_bytes=kept,
        missing=len(left),
        damaged=len(damaged),
        took_s=round(time.monotonic() - began_s, 3),
        problems=counts.problems,
    )


def wrong_blocks(
    image: str, block_map: BlockMap, *, width: int = 8, progress: Callable[[int], None] = lambda _count: None
) -> list[int]:
    """Read an image where it is stored and return its wrong blocks. Raises `StoreError` where it cannot be read."""
    source = origin(image, block_map.offset_bytes, FetchLimits(width=width))
    buffers = threading.local()

    def is_wrong(block: int) -> bool:
        if not hasattr(buffers, "data"):
            buffers.data = memoryview(bytearray(block_map.block_bytes))
        data = buffers.data[: block_map.block_size_bytes(block)]
        source.read_into(block * block_map.block_bytes, [data], Cancellation())
        progress(len(data))
        return not blockmap.is_good(block_map, block, data)

    try:
        with ThreadPoolExecutor(width) as pool:
            wrong = pool.map(is_wrong, range(block_map.blocks))
            return [block for block, bad in enumerate(wrong) if bad]
    finally:
        source.close()


def servers(cache_root: str) -> list[Status]:
    """Return what the block servers of this user on this node say of themselves. One that does not answer is left out."""
    folder = os.path.join(cache_root, "control")
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".sock"))
    except OSError:
        return []
    found = []
    for name in names:
        try:
            found.append(control.ask(os.path.join(folder, name), control.AskStatus(), Status, 2.0))
        except ControlFailed:
            continue
    return found
