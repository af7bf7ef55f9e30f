"""What a checkpoint is found to be: one of ours, a folder of torch.distributed.checkpoint, a file, a folder of files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import tenacity
import xxhash

from robust_run.ckpt_io.address import Address, parse, split
from robust_run.ckpt_io.copying.links import Links, resolved
from robust_run.ckpt_io.copying.trees import FolderTree, PlainFile, named, tree_of
from robust_run.ckpt_io.copying.types import Kind
from robust_run.ckpt_io.errors import CheckpointError, NotACheckpoint
from robust_run.ckpt_io.finding import StoreOpener, read_manifest
from robust_run.ckpt_io.foreign.dcp_folder import METADATA_PATH, DcpFolder, read_dcp_folder
from robust_run.ckpt_io.reading import Checkpoint, open_checkpoint
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH
from robust_run.errors import UserError
from robust_run.store import paths
from robust_run.store.errors import AccessDenied, NotFound, StoreError, Unsupported, is_transient
from robust_run.store.opening import local_path, open_store
from robust_run.store.types import Store

_NO_LIST = "a web server's folders cannot be listed: name a checkpoint or a file, or bring it here by another way"
_ATTEMPTS = 5
__all__ = ["PlainFile", "PlainSource", "open_source", "read_range", "walk_tree"]


@dataclass(frozen=True)
class PlainSource:
    """Files that are copied as they are: one, or all that lie below a folder."""

    url: str
    kind: Kind
    store: Store
    tree: FolderTree
    dcp: DcpFolder | None = None
    links: Links = "refuse"
    is_listed: bool = False
    """The store was asked what there is; else it is known from elsewhere."""

    @property
    def files(self) -> tuple[PlainFile, ...]:
        """All of them."""
        return self.tree.files

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return paths.scheme_of(self.store.url) in ("", "file")

    @property
    def local_folder(self) -> str:
        """The folder that it is, on this machine; empty: it is no folder, or elsewhere."""
        return local_path(self.store.url) if self.kind != "file" and self.is_local else ""

    @property
    def identity(self) -> str:
        """What it is, so that a copy of something else is not continued with it. Each file is looked at by itself."""
        return f"plain files, {self.kind} {xxhash.xxh3_128_hexdigest(self.url.encode())} {paths.shown(self.url)}"

    def walk_again(self) -> FolderTree | None:
        """Return what is there now; None where the store cannot be asked. Raises CheckpointError, StoreError."""
        if self.kind == "file":
            return FolderTree((_plain_file(self.store, self.files[0].path),))
        return walk_tree(self.store, self.links) if self.is_listed else None

    def check_unchanged(self, advice: str) -> None:
        """Raise CheckpointError, with advice, if it is not what it was at first; StoreError if it cannot be asked."""
        now = self.walk_again()
        if now is None:
            return
        there = {file.path: file for file in now.files}
        changed = [file.path for file in self.files if there.get(file.path) != file]
        if changed or now.links != self.tree.links:
            what = named(changed) or "its links"
            raise CheckpointError(f"{paths.shown(self.url)} changed while it was copied: {what}. {advice}")

    def close(self) -> None:
        """Close its store."""
        self.store.close()


def open_source(
    text: str, also: Sequence[str] = (), *, links: Links = "refuse", stores: StoreOpener = open_store
) -> Checkpoint | PlainSource:
    """Open what lies at an address, of any kind; a folder with everything below it. With "/" at its end, it is a folder.

    Raises:
        CheckpointError, StoreError: It is nothing that we know, cannot be reached, or not all of it can be copied.
        UserError: The address is none, or what lies there is a file and a folder of one name.
    """
    where = parse(text, tuple(also))
    try:
        return open_checkpoint(where, stores=stores)
    except NotACheckpoint:
        pass
    dcp = _dcp(where, links, stores)
    if dcp is not None:
        return dcp
    file = _file(where, stores) if not text.endswith("/") else None
    return file or _folder(where, links, stores)


def walk_tree(store: Store, links: Links) -> FolderTree:
    """Return everything below a store's folder. Raises CheckpointError, StoreError."""
    walked, notes = list(store.walk()), list[str]()
    if any(each.kind == "link" for each in walked):
        if paths.scheme_of(store.url) not in ("", "file"):
            told = [f"{each.path} is a link: it is not taken" for each in walked if each.kind == "link"]
            return tree_of([each for each in walked if each.kind != "link"], store.url, told)
        try:
            walked, notes = resolved(walked, local_path(store.url), links)
        except OSError as error:
            raise CheckpointError(f"{store.url}: {error.strerror} ({error.filename})") from error
    return tree_of(walked, store.url, notes)


def _dcp(where: Address, links: Links, stores: StoreOpener) -> PlainSource | None:
    store = stores(where.url)
    try:
        folder = read_dcp_folder(store)
        try:
            return PlainSource(where.url, "dcp", store, walk_tree(store, links), folder, links, is_listed=True)
        except Unsupported:  # over HTTP: what the metadata names
            names = sorted({item.path for item in (*folder.items, *(blob.item for blob in folder.blobs))})
            files = tuple(PlainFile(name, store.size_bytes(name)) for name in (*names, METADATA_PATH))
            note = "a web server's folders cannot be listed: only what .metadata names is taken"
            return PlainSource(where.url, "dcp", store, FolderTree(files, notes=(note,)), folder)
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
        file = _plain_file(store, name)
        if _is_folder_as_well(store, name):
            if not file.size_bytes:  # some tools write an empty object for a folder
                store.close()
                return None
            raise UserError(
                f"{paths.shown(where.url)} is a file and a folder: write it with '/' at its end for the folder, or rename one"
            )
        return PlainSource(where.url, "file", store, FolderTree((file,)))
    except NotFound:
        store.close()
        return None
    except AccessDenied as error:
        store.close()
        if paths.scheme_of(where.url) not in ("http", "https"):
            raise
        raise CheckpointError(f"{error}; if it is a folder: {_NO_LIST}") from error
    except BaseException:
        store.close()
        raise


def _plain_file(store: Store, name: str) -> PlainFile:
    size_bytes = store.size_bytes(name)
    if paths.scheme_of(store.url) not in ("", "file"):
        return PlainFile(name, size_bytes)
    return PlainFile(name, size_bytes, os.stat(local_path(paths.child(store.url, name))).st_mtime_ns / 1e9)


def _is_folder_as_well(store: Store, name: str) -> bool:
    """Whether a file's name is a folder's, too, as object stores have it."""
    if paths.scheme_of(store.url) in ("", "file", "http", "https", "hdfs", "viewfs"):
        return False
    try:
        return any(each.path for each in store.walk(name))
    except (NotFound, Unsupported):
        return False


def _folder(where: Address, links: Links, stores: StoreOpener) -> PlainSource:
    store = stores(where.url)
    try:
        tree = walk_tree(store, links)
        _check_nested(store, tree, where.url)
        if tree.files or tree.links:
            return PlainSource(where.url, "folder", store, tree, links=links, is_listed=True)
        reason = "there is no checkpoint, no folder of torch.distributed.checkpoint, and no file"
    except NotFound:
        reason = "there is no checkpoint, no folder of torch.distributed.checkpoint, and no file"
    except Unsupported:
        reason = f"there is no checkpoint and no file of that name; if it is a folder: {_NO_LIST}"
    except BaseException:
        store.close()
        raise
    store.close()
    raise CheckpointError(f"{paths.shown(where.url)}: {reason}")


def _check_nested(store: Store, tree: FolderTree, url: str) -> None:
    """Checkpoints of ours in it must lie in it as a whole. Raises UserError for one that has parts elsewhere."""
    for file in tree.files:
        folder, _, name = file.path.rpartition("/")
        if name != MANIFEST_PATH:
            continue
        try:
            targets = len(read_manifest(store, url, file.path).manifest.targets)
        except CheckpointError:
            continue
        if targets > 1:
            raise UserError(
                f"{paths.shown(url)}: {folder} in it is a checkpoint with parts on {targets} targets, of which one lies here: "
                "take the checkpoints in it one by one (robust ckpt list names them)"
            )


def read_range(source: PlainSource, file: PlainFile, offset_bytes: int, size_bytes: int) -> bytes:
    """Return bytes of a file. Raises CheckpointError if it does not have them, or they cannot be read."""
    buffer = bytearray(size_bytes)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_transient),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(0.1, max=2.0),
        reraise=True,
    )
    try:
        retrying(source.store.read_into, file.path, offset_bytes, [memoryview(buffer)])
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    return bytes(buffer)
