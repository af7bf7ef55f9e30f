"""A folder of checkpoints seen as plain folders and files.

A folder with a manifest is a checkpoint. It is shown as a folder of its logical files and of `<name>.safetensors`; one
that is a single file of its own name (what an import and a writable mount make) is shown as that file. What a save left that
died is not there: its name can be written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from robust_run.ckpt_io.address import join
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.removing import OURS
from robust_run.ckpt_io.views.shelf import OpenCheckpoint, Shelf
from robust_run.ckpt_io.views.types import VirtualFile
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.paths import clean
from robust_run.store.types import Entry, Store


@dataclass(frozen=True)
class TreeNode:
    """What lies at a path."""

    modified_s: float
    file: VirtualFile | None = None
    """None: a folder."""
    opened: OpenCheckpoint | None = None
    """The checkpoint that it belongs to, or is."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.file is None


class ViewTree:
    """Everything below one URL, which is a checkpoint or a folder of checkpoints. Safe to use from threads."""

    def __init__(self, url: str, shelf: Shelf, stores: Callable[[str], Store]) -> None:
        self.url = url
        self.shelf = shelf
        self._store = stores(url)

    def look(self, path: str) -> TreeNode:
        """Return what lies at a path ("" is the top). Raises NotFound; CheckpointError and StoreError if it cannot be read."""
        opened, rest = self._checkpoint(path)
        if opened is not None:
            return self._within(opened, rest, path)
        return TreeNode(self._folder_time_s(path))

    def list(self, path: str) -> dict[str, TreeNode]:
        """Return what a folder holds, by name. Raises NotFound; CheckpointError and StoreError if it cannot be read."""
        opened, rest = self._checkpoint(path)
        if opened is not None:
            if not self._within(opened, rest, path).is_folder:
                raise NotFound(self.url, path, "is a file, not a folder")
            return self._names_within(opened, rest)
        found = {}
        entries = self._store.list(path)
        if path and self._are_leftovers(entries):
            raise NotFound(self.url, path, "only has what a save left that died")
        for entry in entries:
            if entry.is_folder:
                node = self._named(f"{path}/{entry.name}" if path else entry.name, entry.modified_s)
                if node is not None:
                    found[entry.name] = node
        return found

    def top(self) -> dict[str, TreeNode]:
        """Return the checkpoints and folders that the top holds, also of a web server, which lists no files. Raises as `list`."""
        from robust_run.store.http import HttpStore

        if not isinstance(self._store, HttpStore) or self.shelf.at(self.url) is not None:
            return self.list("")
        found = {name: self._seen(name) for name in self._store.folders()}
        return {name: node for name, node in found.items() if node is not None}

    def _seen(self, name: str) -> TreeNode | None:
        """Return a folder of a web server, if it is a checkpoint: what else it may hold cannot be listed."""
        try:
            return self._within(opened, "", name) if (opened := self.shelf.at(self.url_of(name))) is not None else None
        except NotFound:
            return None
        except (CheckpointError, StoreError):
            return TreeNode(0.0)  # shown, so that it can be found out why it cannot be opened

    def close(self) -> None:
        """Close what is open."""
        self.shelf.close()
        self._store.close()

    def url_of(self, path: str) -> str:
        """Return the URL that a path stands for."""
        return join(self.url, clean(path)) if path else self.url

    def _checkpoint(self, path: str) -> tuple[OpenCheckpoint | None, str]:
        """Return the checkpoint that a path leads into, and what of the path lies within it."""
        parts = clean(path).split("/") if path else []
        for count in range(len(parts) + 1):
            opened = self.shelf.at(self.url_of("/".join(parts[:count])))
            if opened is not None:
                return opened, "/".join(parts[count:])
        return None, ""

    def _named(self, path: str, modified_s: float | None) -> TreeNode | None:
        """Return a folder's node; None for what is no business of a reader: a file, parts of a save that died."""
        if path.rpartition("/")[2].startswith("parts-"):
            return None
        try:
            opened = self.shelf.at(self.url_of(path))
            is_there = opened is not None or not self._are_leftovers(self._store.list(path))
        except NotFound:  # gone since its folder was listed
            return None
        except (CheckpointError, StoreError):
            return TreeNode(modified_s or 0.0)  # shown, so that it can be found out why it cannot be opened
        if not is_there:
            return None
        return self._within(opened, "", path) if opened is not None else TreeNode(modified_s or 0.0)

    def _are_leftovers(self, entries: Sequence[Entry]) -> bool:
        """Whether what a folder without a manifest holds is only what a save that died leaves. An empty one is just a folder."""
        return bool(entries) and all(OURS.fullmatch(entry.name) for entry in entries)

    def _within(self, opened: OpenCheckpoint, rest: str, path: str) -> TreeNode:
        created_s = opened.source.manifest.created_s
        if not rest:
            if opened.is_one_file and opened.url != self.url:
                return TreeNode(created_s, next(iter(opened.files.values())), opened)
            return TreeNode(created_s, None, opened)
        if rest in opened.files:
            return TreeNode(created_s, opened.files[rest], opened)
        if any(name.startswith(rest + "/") for name in opened.files):
            return TreeNode(created_s, None, opened)
        raise NotFound(self.url, path, f"checkpoint {opened.url} has no such file")

    def _names_within(self, opened: OpenCheckpoint, rest: str) -> dict[str, TreeNode]:
        prefix = f"{rest}/" if rest else ""
        found: dict[str, TreeNode] = {}
        for name, file in opened.files.items():
            if name.startswith(prefix):
                first, slash, _ = name[len(prefix) :].partition("/")
                found[first] = TreeNode(opened.source.manifest.created_s, None if slash else file, opened)
        return found

    def _folder_time_s(self, path: str) -> float:
        """Return when a plain folder was changed. Raises NotFound if there is none."""
        if not path:
            return 0.0
        folder, _, name = path.rpartition("/")
        for entry in self._store.list(folder):
            if entry.name == name and entry.is_folder and not self._are_leftovers(self._store.list(path)):
                return entry.modified_s or 0.0
        raise NotFound(self.url, path, "no such file or folder")
