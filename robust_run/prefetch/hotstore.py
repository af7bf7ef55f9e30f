"""Where hot lists lie: beside the image where that can be written, else in the user's cache. One file per key.

Beside an image at `data/train.sqsh` they are `data/train.sqsh.hot/<launch>-<machine>.json`, to be read, compared and removed by
people. Read, merge and write are atomic together on one node, and among all nodes where the lists lie on a file system that has
locks. On an object store, and on a file system without locks, the last of two writers wins, and the other's launch is as if it
had not been recorded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import HotKey, HotList, Touch
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store

_LOCK_LIMIT_S = 5.0
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def file_name(key: HotKey) -> str:
    """Return the name of a key's file: readable parts where they are plain, and never a path."""
    plain = all(_PLAIN.fullmatch(part) and not part.startswith(".") for part in (key.launch, key.machine))
    digest = hashlib.sha256("\0".join((key.image, key.launch, key.machine)).encode("utf-8", "replace")).hexdigest()[:16]
    return f"{key.launch[:24]}-{key.machine}-{digest}.json" if plain else f"{digest}.json"


class HotStore:
    """The hot lists of one image."""

    def __init__(self, image_url: str, cache_root: str, *, lock_limit_s: float = _LOCK_LIMIT_S) -> None:
        """`image_url`: path or URL of the image; `cache_root`: the user's folder for what cannot lie beside it; `lock_limit_s`:
        who holds a lock for longer is stopped, or on a dead file system: it is gone on without.
        """
        address, _mark, query = image_url.partition("?") if "://" in image_url else (image_url, "", "")
        self._beside = "" if query else f"{address}.hot"  # a signed URL opens one object and no other
        self._own = os.path.join(cache_root, "hot")
        self._lock_limit_s = lock_limit_s

    def load(self, key: HotKey) -> tuple[HotList | None, tuple[str, ...]]:
        """Return the list of a key, None where there is none, and what was wrong with those that were passed over."""
        problems = []
        best: HotList | None = None
        for place in self._places():
            try:
                found = _read(open_store(place), key)
            except NotFound:
                continue
            except (StoreError, HotListRefused) as error:
                problems.append(str(error))
                continue
            if best is None or found.launches > best.launches:
                best = found
        return best, tuple(problems)

    def record(
        self,
        key: HotKey,
        recordings: Sequence[Sequence[Touch]],
        window_s: float,
        launch_id: str = "",
        *,
        own_only: bool = False,
    ) -> tuple[HotList, str]:
        """Merge the touches of one launch (one recording per rank or node) into the list. Return it and where it lies.

        `launch_id`: see `hotlist.merged`; `own_only`: not beside the image, where other nodes write already. Raises `StoreError`
        where it can be written nowhere.
        """
        touches = hotlist.union(recordings)
        beside = [] if own_only or "://" in self._beside or not self._beside else [self._beside]
        with ExitStack() as locks:
            locks.enter_context(_locked(self._own, self._lock_limit_s))
            for folder in beside:
                locks.enter_context(_locked(folder, self._lock_limit_s, shared=True))
            old, _problems = self.load(key)
            new = hotlist.merged(old, key, touches, window_s, launch_id)
            return new, self._write(file_name(key), hotlist.encode(new), [self._own] if own_only else self._places())

    def _places(self) -> list[str]:
        return [place for place in (self._beside, self._own) if place]

    @staticmethod
    def _write(name: str, data: bytes, places: Sequence[str]) -> str:
        *others, last = places
        for place in others:
            store = open_store(place)
            try:
                if store.writable:
                    store.write_all(name, data, durable=False)
                    return f"{store.url.rstrip('/')}/{name}"
            except StoreError:
                continue  # the image is often in a folder of another user
        store = open_store(last)
        store.write_all(name, data, durable=False)
        return f"{store.url.rstrip('/')}/{name}"


def _read(store: Store, key: HotKey) -> HotList:
    name = file_name(key)
    try:
        data = store.read_all(name, hotlist.LARGEST_LIST_BYTES)
    finally:
        store.close()
    found = hotlist.decode(data, f"{store.url.rstrip('/')}/{name}")
    if found.key != key:
        raise HotListRefused(f"{name}: it is of another image or launch; the next launch records a new one")
    return found


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # this file system has no locks
    return True


@contextmanager
def _locked(folder: str, limit_s: float, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of all hot lists in a folder; `shared`: with other users. Where none can be made there, go on without."""
    try:
        os.makedirs(folder, mode=0o777 if shared else 0o700, exist_ok=True)
        descriptor = os.open(
            os.path.join(folder, ".lock"),
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o666 if shared else 0o600,
        )
    except OSError:
        yield
        return
    try:
        deadline_s = time.monotonic() + limit_s
        while not _try_lock(descriptor) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
