"""The way without FUSE: fetch the whole image, many ranges at once, and unpack it into a folder that later jobs use too.

    <cache root>/<identity of the image>/tree    the unpacked image; it is there only when it is whole

One job at a time unpacks an image; others wait for it and find it done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator

from robust_run.mounts.errors import MountRefused
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import ServerFailed
from robust_run.prefetch.fetching.sources import origin
from robust_run.prefetch.fetching.workers import Fetcher
from robust_run.prefetch.pruning import remove_tree
from robust_run.prefetch.rules.types import BlockMap, FetchCounts
from robust_run.prefetch.server.config import ServeOptions
from robust_run.store import turn_table

_TREE, _LOCK, _PARTIAL = "tree", "unpacking", "tree.partial-"
_LOOK_EVERY_S = 0.02


def folder(cache: Cache) -> str:
    """Return where the unpacked image is."""
    return os.path.join(cache.folder, _TREE)


def ensure(cache: Cache, image_url: str, tool: str, options: ServeOptions, limit_s: float) -> str:
    """Have the image unpacked, and return its folder. `cache` keeps it from being pruned for as long as it is open.

    `tool`: unsquashfs. Raises `ServerFailed` where a block cannot be had, and `MountRefused` where it cannot be unpacked.
    """
    deadline_s = time.monotonic() + limit_s
    with _alone(os.path.join(cache.folder, _LOCK), deadline_s):
        tree = folder(cache)
        if os.path.isdir(tree):
            return tree
        for name in os.listdir(cache.folder):
            if name.startswith(_PARTIAL):  # of a job that was killed
                remove_tree(os.path.join(cache.folder, name))
        _fetch(cache, image_url, options, deadline_s)
        partial = tempfile.mkdtemp(prefix=_PARTIAL, dir=cache.folder)
        try:
            made = os.path.join(partial, _TREE)
            _unpack(tool, cache.path, made, deadline_s)
            os.rename(made, tree)
        finally:
            remove_tree(partial)
        return tree


@contextlib.contextmanager
def _alone(path: str, deadline_s: float) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise MountRefused(f"{path}: another job has been unpacking this image for too long") from None
                time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(lock)


def _fetch(cache: Cache, image_url: str, options: ServeOptions, deadline_s: float) -> None:
    """Bring all blocks into the cache. Those that are here are verified: what unpacks them reads past us."""
    cache.sift()
    block_map: BlockMap = cache.block_map
    source = origin(image_url, block_map.offset_bytes, options.limits, options.store_options)
    fetcher = Fetcher(block_map, cache, (source,), options.limits)
    turns = turn_table.opened()

    def take_turn(table: turn_table.TurnTable) -> bool:
        is_to_come = not cache.complete  # no worker starts before
        return fetcher.take_turn(table, options.what, is_all_waited_for=is_to_come)

    fetcher.start()
    try:
        fetcher.background(options.limits.width, None)
        turn_table.take_turns(take_turn, turns)
        while not cache.complete:
            counts = fetcher.counts()
            if counts.given_up or counts.passing_through or time.monotonic() > deadline_s:
                raise ServerFailed(f"{image_url}: {_why(counts)}")
            time.sleep(_LOOK_EVERY_S)
    finally:
        fetcher.stop()
        if turns is not None:
            take_turn(turns)  # what came last is told of, too
        source.close()


def _why(counts: FetchCounts) -> str:
    if counts.passing_through:
        return "the disk of the image cache is full, so the image cannot be unpacked"
    return counts.problems[-1] if counts.problems else "it could not be fetched in time"


def command(tool: str, image: str, made: str) -> list[str]:
    """Return the argv that unpacks. Devices and owners that we may not make are left out, and that is no failure. Pure."""
    return [tool, "-no-progress", "-quiet", "-no-xattrs", "-no-exit-code", "-dest", made, image]


def unpack(tool: str, image: str, made: str, limit_s: float) -> None:
    """Unpack an image file that is here into a new folder. Raises `MountRefused`."""
    _unpack(tool, image, made, time.monotonic() + limit_s)


def _unpack(tool: str, image: str, made: str, deadline_s: float) -> None:
    try:
        done = subprocess.run(
            command(tool, image, made),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=max(1.0, deadline_s - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MountRefused(f"{image}: it could not be unpacked in time") from error
    except OSError as error:
        raise MountRefused(f"{tool}: {error.strerror}") from error
    if done.returncode or not os.path.isdir(made):
        said = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        raise MountRefused(f"{image}: unsquashfs ended with {done.returncode}: {(said or [''])[-1][:300]}")
