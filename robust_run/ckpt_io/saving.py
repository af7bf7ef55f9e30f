"""Saving a checkpoint: parts first, by any number of processes; then copies of the manifest; then the manifest.

Until the manifest has replaced the one before it, in one atomic step, the checkpoint that was there before is what there is. A
save that dies leaves parts that no manifest names; `prune` removes them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress

from robust_run.ckpt_io.address import Address, parse
from robust_run.ckpt_io.errors import CheckpointError, NotACheckpoint, TargetLost
from robust_run.ckpt_io.finding import StoreOpener, read_manifest
from robust_run.ckpt_io.newest import WRITTEN_BY, written_by
from robust_run.ckpt_io.notes import leave_save
from robust_run.ckpt_io.parts import FilePiece, PartsJob, Pieces, UnitsRecord, write_parts
from robust_run.ckpt_io.presence import wrong_part
from robust_run.ckpt_io.removing import remove_if_empty, remove_save
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, copy_path, parts_folder
from robust_run.ckpt_io.rules.types import UNIT_BYTES, Blob, Codec, LogicalFile, Manifest, SavePlan, Tensor
from robust_run.ckpt_io.stream import FileStream
from robust_run.errors import PlatformError, UserError
from robust_run.store import paths
from robust_run.store.engine import transfer
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store

__all__ = [
    "FilePiece",
    "FileStream",
    "SavePlan",
    "abandon",
    "begin_save",
    "commit",
    "open_file",
    "open_targets",
    "write_file",
]


def begin_save(
    url: str | Address,
    also: Sequence[str] = (),
    *,
    unit_bytes: int = UNIT_BYTES,
    codec: Codec = "none",
    item_bytes: int = 1,
    durable: bool = True,
) -> SavePlan:
    """Plan a save. Nothing is touched yet; one process does this and hands the plan to all that write.

    Raises:
        UserError: The address, the unit or the width of items is none.
    """
    where = url if isinstance(url, Address) else parse(url, tuple(also))
    least, most = manifests.UNIT_BYTES_LEAST, manifests.UNIT_BYTES_MOST
    if not least <= unit_bytes <= most or unit_bytes & (unit_bytes - 1):
        raise UserError(f"unit_bytes {unit_bytes}: a power of two from {least} to {most} is needed")
    if item_bytes not in manifests.ITEM_BYTES:
        raise UserError(f"item_bytes {item_bytes}: one of {manifests.ITEM_BYTES} is needed")
    if len(where.folders) > manifests.TARGETS:
        raise UserError(f"{len(where.folders)} targets: at most {manifests.TARGETS} are possible")
    _ = where.name  # that there is one
    return SavePlan(
        url=where.url,
        also=where.also,
        uuid=uuid.uuid4().hex,
        unit_bytes=unit_bytes,
        codec=codec,
        item_bytes=item_bytes,
        durable=durable,
    )


def write_file(  # noqa: PLR0913 - the last four are options
    plan: SavePlan,
    index: int,
    name: str,
    pieces: Sequence[FilePiece],
    size_bytes: int,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    item_bytes: int | None = None,
    stores: StoreOpener = open_store,
    targets: Sequence[Store] | None = None,
) -> LogicalFile:
    """Write one logical file; what no piece covers is zeros. `index` is its place in the `files` of `commit`, and its own.

    `item_bytes` is the width of the elements that `zstd_shuffle` groups (None: the plan's). `targets`: as `open_targets` gives
    them, for many small files.

    Raises:
        TargetLost: A target is full, read-only, or failed otherwise.
        ValueError: Pieces overlap or lie outside the file.
    """
    _check_file(name, index)
    with nullcontext(targets) if targets is not None else open_targets(plan, stores) as opened, _naming_target():
        record = UnitsRecord(plan, index, name, item_bytes or plan.item_bytes)
        job = PartsJob(plan, index, Pieces(pieces, size_bytes), size_bytes, record, opened)
        write_parts(job, threads or max(store.threads for store in opened), progress)
        return record.result(size_bytes)


def open_file(
    plan: SavePlan, index: int, name: str, *, item_bytes: int | None = None, stores: StoreOpener = open_store
) -> FileStream:
    """Begin a logical file of unknown length. Raises as `write_file` does."""
    _check_file(name, index)
    return FileStream(plan, index, name, [stores(folder) for folder in plan.folders], item_bytes or plan.item_bytes)


def _written_by(env: Mapping[str, str]) -> dict[str, str]:
    """Return which version of the job's code writes, where a launcher has said so."""
    said = written_by(env.get("ROBUST_JOB", ""), env.get("ROBUST_CODE_VERSION", ""))
    return {WRITTEN_BY: said} if said else {}


def commit(  # noqa: PLR0913 - all but two are what the manifest says
    plan: SavePlan,
    files: Sequence[LogicalFile],
    *,
    tensors: Sequence[Tensor] = (),
    blobs: Sequence[Blob] = (),
    paths: Mapping[str, tuple[str | int, ...]] | None = None,
    step: int | None = None,
    facts: Mapping[str, str] | None = None,
    stores: StoreOpener = open_store,
    now_s: Callable[[], float] = time.time,
    env: Mapping[str, str] = os.environ,
) -> Manifest:
    """Make what was written a checkpoint: called once, by one process, after all files are written. Then it exists.

    What the name stood for before is removed afterwards; if that fails, `prune` does it some time.

    Raises:
        TargetLost: A part is missing or not whole, or a target failed. Nothing was committed, unless the failing target is the
            primary: then opening it tells.
        ManifestRefused: What was given contradicts itself.
    """
    manifest = Manifest(
        uuid=plan.uuid,
        created_s=now_s(),
        step=step,
        targets=(".", *_shown(plan.folders[1:])),
        files=tuple(files),
        tensors=tuple(tensors),
        blobs=tuple(blobs),
        paths=dict(paths or {}),
        facts={**_written_by(env), **(facts or {})},
    )
    data = manifests.encode(manifest)
    with open_targets(plan, stores) as opened, _naming_target():
        _check_parts(manifest, opened)
        copies = [_SmallFile(store, copy_path(plan.uuid), data, plan.durable) for store in opened[1:]]
        transfer(copies, threads=8)
        before = None
        with suppress(CheckpointError):
            before = read_manifest(opened[0], plan.url)
        transfer([_SmallFile(opened[0], MANIFEST_PATH, data, plan.durable)], threads=1)
        leave_save(plan.url, manifest.uuid, step, manifest.created_s, env)
        if before is not None and before.manifest.uuid != plan.uuid:
            remove_save(before, plan.where, opened[0], stores, with_manifest=False)
    return manifest


def abandon(plan: SavePlan, *, stores: StoreOpener = open_store) -> None:
    """Remove what a save that will not be committed has written, as far as that is possible. No process may be writing any more.

    The checkpoint's folder goes, too, on each target where nothing else is in it: so the name is free again.
    Does nothing to a save that was committed, nor where the primary does not tell whether it was.
    """
    try:
        with closing(stores(plan.url)) as primary:
            if read_manifest(primary, plan.url).manifest.uuid == plan.uuid:
                return
    except NotACheckpoint:
        pass
    except CheckpointError:
        return
    for remove in (copy_path, parts_folder):
        for folder in plan.folders:
            with suppress(StoreError), closing(stores(folder)) as store:
                store.remove(remove(plan.uuid))
    for folder in plan.folders:
        with suppress(PlatformError):
            remove_if_empty(folder, stores)


class _SmallFile:
    """A manifest to be written, for the engine: the same bytes again are fine."""

    def __init__(self, store: Store, path: str, data: bytes, durable: bool) -> None:
        self._store, self._path, self._data, self._durable = store, path, data, durable
        self.size_bytes = len(data)

    def run(self, attempt: int) -> None:  # noqa: ARG002 - all attempts are the same
        self._store.write_all(self._path, self._data, durable=self._durable)


def _check_parts(manifest: Manifest, opened: Sequence[Store]) -> None:
    """All parts are there, and as long as they should be: some process may have died, or written elsewhere."""
    layouts = manifests.layouts(manifest)
    for target, store in enumerate(opened):
        wrong = wrong_part(manifest.uuid, layouts, target, store)
        if wrong is not None:
            raise TargetLost(paths.shown(store.url), f"{wrong}: not committed")


def _check_file(name: str, index: int) -> None:
    if not paths.is_clean(name):
        raise UserError(f"logical file {name!r}: a relative path without '..' is needed")
    if not 0 <= index < manifests.FILES:
        raise UserError(f"logical file {name!r}: index {index} is not from 0 to {manifests.FILES - 1}")


def _shown(folders: Sequence[str]) -> Iterator[str]:
    return (paths.shown(folder) for folder in folders)


@contextmanager
def open_targets(plan: SavePlan, stores: StoreOpener = open_store) -> Iterator[Sequence[Store]]:
    """Open the stores of all targets while the block runs. Raises UserError."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(stores(folder))) for folder in plan.folders]


@contextmanager
def _naming_target() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise TargetLost(paths.shown(error.url), f"{error.path}: {error.what}") from error
