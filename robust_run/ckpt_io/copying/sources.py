"""What a checkpoint is found to be: one of ours, a folder of torch.distributed.checkpoint, a file, a folder of files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from robust_run.ckpt_io.address import Address, parse, split
from robust_run.ckpt_io.copying.types import Kind
from robust_run.ckpt_io.errors import CheckpointError, NotACheckpoint
from robust_run.ckpt_io.finding import StoreOpener
from robust_run.ckpt_io.foreign.dcp_folder import METADATA_PATH, read_dcp_folder
from robust_run.ckpt_io.foreign.types import DcpFolder
from robust_run.ckpt_io.reading import Checkpoint, open_checkpoint
from robust_run.store import paths
from robust_run.store.errors import NotFound, StoreError, Unsupported
from robust_run.store.opening import open_store
from robust_run.store.types import Store

_FILES_MOST = 100_000


@dataclass(frozen=True)
class PlainFile:
    """A file as it is."""

    path: str
    """In the source's store."""
    size_bytes: int


@dataclass(frozen=True)
class PlainSource:
    """Files that are copied as they are."""

    url: str
    kind: Kind
    store: Store
    files: tuple[PlainFile, ...]
    dcp: DcpFolder | None = None

    @property
    def identity(self) -> str:
        """What it is, so that a copy of something else is not continued with it."""
        sizes = ",".join(f"{file.path}={file.size_bytes}" for file in self.files)
        return f"plain {paths.shown(self.url)} {len(self.files)} {sizes}"

    def close(self) -> None:
        """Close its store."""
        self.store.close()


def open_source(text: str, also: Sequence[str] = (), *, stores: StoreOpener = open_store) -> Checkpoint | PlainSource:
    """Open whatever lies at an address. Raises CheckpointError if it is nothing that we know, or cannot be reached."""
    where = parse(text, tuple(also))
    try:
        return open_checkpoint(where, stores=stores)
    except NotACheckpoint:
        pass
    return _dcp(where, stores) or _file(where, stores) or _folder(where, stores)


def _dcp(where: Address, stores: StoreOpener) -> PlainSource | None:
    store = stores(where.url)
    try:
        folder = read_dcp_folder(store)
        names = sorted({item.path for item in (*folder.items, *(blob.item for blob in folder.blobs))})
        files = tuple(PlainFile(name, store.size_bytes(name)) for name in (*names, METADATA_PATH))
        return PlainSource(where.url, "dcp", store, files, folder)
    except NotFound:
        store.close()
        return None
    except BaseException:
        store.close()
        raise


def _file(where: Address, stores: StoreOpener) -> PlainSource | None:
    root, name = split(where.url)
    store = stores(root)
    try:
        return PlainSource(where.url, "file", store, (PlainFile(name, store.size_bytes(name)),))
    except NotFound:
        store.close()
        return None
    except BaseException:
        store.close()
        raise


def _folder(where: Address, stores: StoreOpener) -> PlainSource:
    store = stores(where.url)
    files: tuple[PlainFile, ...] = ()
    with suppress(NotFound, Unsupported):
        entries = [entry for entry in store.list() if not entry.is_folder and not entry.name.startswith(".")]
        files = tuple(PlainFile(entry.name, entry.size_bytes) for entry in entries[:_FILES_MOST])
    if not files:
        store.close()
        raise CheckpointError(
            f"{paths.shown(where.url)}: there is no checkpoint, no folder of torch.distributed.checkpoint, and no file"
        )
    return PlainSource(where.url, "folder", store, files)


def read_range(source: PlainSource, file: PlainFile, offset_bytes: int, size_bytes: int) -> bytes:
    """Return bytes of a file. Raises CheckpointError if it does not have them."""
    buffer = bytearray(size_bytes)
    try:
        source.store.read_into(file.path, offset_bytes, [memoryview(buffer)])
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    return bytes(buffer)
