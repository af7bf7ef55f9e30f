"""Bringing an image to this node: in parallel ranges, verified as a whole, then under its final name. Done once per node.

Several processes may fetch the same image at once; each writes a file of its own, and the last rename wins, which is the same.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError
from robust_run.snapshot import catalog, lazy, node_cache
from robust_run.snapshot.errors import SnapshotDamaged, SnapshotError
from robust_run.snapshot.pack import sha256_of
from robust_run.snapshot.restore.extract import alone_on_node
from robust_run.snapshot.restore.unpacked import own_folder
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store import turn_table
from robust_run.store.buffers import write_at
from robust_run.store.engine import transfer
from robust_run.store.errors import NotFound, ShortRead, StoreError
from robust_run.store.jobs import Hedge, ReadJob
from robust_run.store.rules.turns import Urgency
from robust_run.store.types import Store

if TYPE_CHECKING:
    from robust_run.prefetch.rules.types import BlockMap

RANGE_BYTES = 8 << 20
_SEAL_BYTES = 4096


class _Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What a verified image looked like. One that looks otherwise is verified again."""

    size_bytes: int
    inode: int
    modified_ns: int
    changed_ns: int


def cached_path(cache: str, manifest: SnapshotManifest) -> str:
    """Return where an image lies on this node, whether it is there or not."""
    return os.path.join(cache, "images", f"{manifest.image_sha256}.sqsh")


def fetch(store: Store, manifest: SnapshotManifest, cache: str, progress: Callable[[int], None] | None = None) -> str:
    """Return the path of the verified image; it is only downloaded if it is not there yet.

    Raises `SnapshotDamaged` if it or its bytes are not what the manifest says, `StoreError`, `SnapshotError` (no room).
    """
    target = cached_path(cache, manifest)
    if is_sealed(target):
        node_cache.note_use(target)
        return target
    try:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        with alone_on_node(target + ".lock"):
            if not is_sealed(target):
                _sweep(target)
                if not _is_good(target, manifest):
                    _bring(store, manifest, target, progress)
                seal(target)
        node_cache.prune(cache, os.path.basename(target), time.time())
    except OSError as error:
        raise SnapshotError(
            f"{target}: {error.strerror or error}: name another cache folder, or free some space"
        ) from error
    return target


def keep(image: str, manifest: SnapshotManifest, cache: str) -> None:
    """Move an image that was built and digested here just now into the cache, if that is on the same disk. Raises nothing."""
    with suppress(OSError, PlatformError):
        target = cached_path(own_folder(cache), manifest)
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        with alone_on_node(target + ".lock"):
            if not is_sealed(target):
                os.chmod(image, 0o444)
                os.rename(image, target)
                seal(target)
        node_cache.prune(cache, os.path.basename(target), time.time())


def is_sealed(target: str) -> bool:
    """Whether an image was verified under this name and has not been touched since."""
    try:
        with open(target + ".ok", "rb") as file:
            known = json_decoder(_Seal).decode(file.read(_SEAL_BYTES))
        return known == _looks(target)
    except (OSError, msgspec.MsgspecError):
        return False


def seal(target: str) -> None:
    """Note that an image has been verified. Raises OSError."""
    write_file(target + ".ok", msgspec.json.encode(_looks(target)), draft=f"{target}.ok.{uuid.uuid4().hex}.part")


def bring_again(store: Store, manifest: SnapshotManifest, cache: str) -> bool:
    """Look at every byte of an image that was verified before but cannot be used. Returns whether it was bad and another is here.

    Raises as `fetch`.
    """
    target = cached_path(cache, manifest)
    if _is_good(target, manifest):
        return False
    with suppress(OSError):
        os.unlink(target + ".ok")
    fetch(store, manifest, cache)
    return True


def _is_good(target: str, manifest: SnapshotManifest) -> bool:
    """Whether an image that was not sealed, or was touched since, is what it should be all the same."""
    try:
        return sha256_of(target) == (manifest.image_sha256, manifest.image_bytes)
    except OSError:
        return False


def _looks(target: str) -> _Seal:
    status = os.stat(target, follow_symlinks=False)
    return _Seal(
        size_bytes=status.st_size,
        inode=status.st_ino,
        modified_ns=status.st_mtime_ns,
        changed_ns=status.st_ctime_ns,
    )


def _bring(store: Store, manifest: SnapshotManifest, target: str, progress: Callable[[int], None] | None) -> None:
    """Download into a file of our own, verify, rename."""
    part = f"{target}.{uuid.uuid4().hex}.part"
    blocks = _block_map(store, manifest)
    try:
        with open(part, "xb") as file:
            file.truncate(manifest.image_bytes)
            path = catalog.image_path(manifest)
            jobs = (_Piece(store, path, file.fileno(), at, size, blocks) for at, size in _ranges(manifest.image_bytes))
            with _turn(manifest.image_bytes) as came:
                transfer(jobs, threads=store.threads, hedge=Hedge(), progress=_both(progress, came))
        digest, size_bytes = (manifest.image_sha256, manifest.image_bytes) if blocks else sha256_of(part)
        if digest != manifest.image_sha256 or size_bytes != manifest.image_bytes:
            raise SnapshotDamaged(
                f"{store.url.rstrip('/')}/{path}: its sha256 is {digest}, the manifest says {manifest.image_sha256};"
                " build it again"
            )
        os.chmod(part, 0o444)
        os.rename(part, target)
    except (NotFound, ShortRead) as error:
        raise SnapshotDamaged(f"{error}: the snapshot's manifest names it; build it again") from error
    finally:
        with suppress(OSError):
            os.unlink(part)


@contextmanager
def _turn(size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Have others of this node let the set-up go first while the block runs: no worker starts before it is there."""
    came, is_over = [0], threading.Event()

    def look(table: turn_table.TurnTable) -> bool:
        table.say(turn_table.SET_UP, Urgency.SET_UP, came[0], size_bytes, is_over=is_over.is_set())
        return not is_over.is_set()

    def add(more_bytes: int) -> None:
        came[0] += more_bytes

    table = turn_table.opened()
    turn_table.take_turns(look, table)
    try:
        yield add
    finally:
        is_over.set()
        if table is not None:
            look(table)  # what came last is told of, too


def _both(first: Callable[[int], None] | None, second: Callable[[int], None]) -> Callable[[int], None]:
    def tell(count: int) -> None:
        second(count)
        if first is not None:
            first(count)

    return tell


def _block_map(store: Store, manifest: SnapshotManifest) -> BlockMap | None:
    """Return the map by which blocks are verified as they come, on all processors; None: the whole is verified in the end.

    The manifest has its digest, so it is as good as the digest of the whole. Raises nothing.
    """
    from robust_run.prefetch import blockmap
    from robust_run.prefetch.errors import BlockMapRefused

    if not manifest.blocks_sha256:
        return None
    try:
        data = store.read_all(lazy.map_path(manifest), blockmap.LARGEST_MAP_BYTES)
        if lazy.digest_of(data) != manifest.blocks_sha256:
            return None
        found = blockmap.decode(data)
    except (StoreError, BlockMapRefused):
        return None
    fits = found.size_bytes == manifest.image_bytes and not found.offset_bytes and not RANGE_BYTES % found.block_bytes
    return found if fits and found.sha256 == manifest.image_sha256 else None


@dataclass(eq=False)
class _Piece:
    """One range: read into memory, verified there if there is a block map, then written to its place in the file."""

    _store: Store
    _path: str
    _descriptor: int
    _offset: int
    size_bytes: int
    _blocks: BlockMap | None

    def run(self, attempt: int) -> None:
        """Bring the range. Raises `SnapshotDamaged` for a block that is not that of the map."""
        buffer = bytearray(self.size_bytes)
        ReadJob(self._store, self._path, self._offset, [memoryview(buffer)]).run(attempt)
        if self._blocks is not None:
            self._verify(self._blocks, memoryview(buffer))
        write_at(self._descriptor, buffer, self._offset)

    def _verify(self, blocks: BlockMap, data: memoryview) -> None:
        from robust_run.prefetch import blockmap

        for at in range(0, self.size_bytes, blocks.block_bytes):
            index = (self._offset + at) // blocks.block_bytes
            if not blockmap.is_good(blocks, index, data[at : at + blocks.block_bytes]):
                raise SnapshotDamaged(
                    f"{self._store.url.rstrip('/')}/{self._path}: its sha256 is not what the manifest says, as block"
                    f" {index} shows; build it again"
                )


def _ranges(size_bytes: int) -> Iterator[tuple[int, int]]:
    for at in range(0, size_bytes, RANGE_BYTES):
        yield at, min(RANGE_BYTES, size_bytes - at)


def _sweep(target: str) -> None:
    """Remove what a process that was killed has left. We hold the lock, so no other process is writing one."""
    folder, name = os.path.split(target)
    for item in list(os.scandir(folder)):
        if item.name.startswith(name + ".") and item.name.endswith(".part"):
            with suppress(OSError):
                os.unlink(item.path)
