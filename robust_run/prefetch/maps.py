"""Finding the block map of an image: beside it; where it cannot be reached just now, the one that was there last.

An image file without one, as enroot and Apptainer make them, is read once to make it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from robust_run.atomic_file import write_file
from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import BlockMapRefused
from robust_run.prefetch.fetching.sources import split
from robust_run.prefetch.image.build import describe
from robust_run.prefetch.rules.types import BlockMap
from robust_run.store.errors import NotFound, StoreError, Unavailable, is_transient
from robust_run.store.opening import open_store
from robust_run.store.types import Store, StoreOptions

#: Between tries to read a map that is nowhere else: a store that is busy for a moment costs a start no more than that.
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_LONGEST_PAUSE_S = 10.0
#: From when on it is not tried again: each try may have waited for a connection, or for a byte.
_TRY_AGAIN_S = 15.0


class Waiting(NamedTuple):
    """How time passes while a store is asked again."""

    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


_WAITING = Waiting()


def fetch_map(
    image_url: str, cache_root: str, options: StoreOptions, waiting: Waiting = _WAITING
) -> tuple[BlockMap, tuple[str, ...]]:
    """Return the block map of an image, and what was wrong and passed over.

    Raises `BlockMapRefused` where it is damaged or missing, `StoreError` where the store cannot be reached and never was.
    """
    folder, name = split(blockmap.sidecar(image_url))
    remembered = _place(cache_root, image_url)
    store = open_store(folder, options)
    try:
        # With one that was there last, a start need not wait.
        pauses = () if os.path.exists(remembered) else _PAUSES_S
        data = _read(store, name, pauses, waiting)
    except NotFound as error:
        if "://" not in image_url:
            return _made(image_url, remembered)
        raise BlockMapRefused(
            f"{error}: an image needs its block map: make it with `robust image build IMAGE`"
        ) from error
    except StoreError as error:
        if not is_transient(error):
            raise
        return _remembered(remembered, error), (f"{error}; the block map that was there last is used",)
    finally:
        store.close()
    found = blockmap.decode(data, f"{store.url.rstrip('/')}/{name.partition('?')[0]}")
    if "://" in image_url:
        _remember(remembered, data)
    return found, ()


def _read(store: Store, name: str, pauses: Sequence[float], waiting: Waiting) -> bytes:
    """Read a map, again after each of these pauses where that may help. Raises `StoreError`."""
    began_s = waiting.clock()
    for pause_s in pauses:
        try:
            return store.read_all(name, blockmap.LARGEST_MAP_BYTES)
        except Unavailable as error:
            wait_s = min(max(pause_s, error.retry_after_s), _LONGEST_PAUSE_S)
            if waiting.clock() + wait_s - began_s > _TRY_AGAIN_S:
                raise
            waiting.pause(wait_s)
    return store.read_all(name, blockmap.LARGEST_MAP_BYTES)


def _place(cache_root: str, image_url: str) -> str:
    """Return where a map is remembered; for a file, one that was changed has another place."""
    name = image_url
    if "://" not in image_url:
        with contextlib.suppress(OSError):
            found = os.stat(image_url)
            name = f"{os.path.realpath(image_url)}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    return os.path.join(cache_root, "maps", f"{digest}.json")


def _made(path: str, remembered: str) -> tuple[BlockMap, tuple[str, ...]]:
    """Read an image to make its map, or return the one that was made before."""
    with contextlib.suppress(StoreError, BlockMapRefused):
        return _remembered(remembered, NotFound(path, "", "")), ()
    try:
        found = describe(path)
    except OSError as error:
        raise BlockMapRefused(f"{path}: {error.strerror or error}: the image cannot be read") from error
    _remember(remembered, blockmap.encode(found))
    return found, (f"{path} had no block map: it was read to make one; `robust image build` makes it once for all",)


def _remember(path: str, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it is a convenience
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_file(path, data, mode=0o600)


def _remembered(path: str, error: StoreError) -> BlockMap:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise error
            data = file.read(blockmap.LARGEST_MAP_BYTES + 1)
    except OSError:
        raise error from None
    return blockmap.decode(data, path)
