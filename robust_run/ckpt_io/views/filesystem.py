"""`rrck://`: files of checkpoints through fsspec, for everything that opens its files that way. Read-only.

    with fsspec.open("rrck:///ssd0/run/step-4000/step-4000.safetensors") as file: ...
    fsspec.filesystem("rrck").ls("rrck://hdfs://nn/run")

A path is the one of a checkpoint (see `robust_run.ckpt_io.address`) with the file's name behind it; `?also=ROOT` names further
targets, where the manifest's own are not to be followed.
"""

from __future__ import annotations

import time
from typing import Any

from fsspec.spec import AbstractFileSystem

from robust_run.ckpt_io.address import join, normal, parse, split
from robust_run.ckpt_io.reading import Checkpoint, open_checkpoint
from robust_run.ckpt_io.views.cache import UnitCache
from robust_run.ckpt_io.views.files import open_view
from robust_run.ckpt_io.views.reader import ViewReader
from robust_run.ckpt_io.views.shelf import Shelf
from robust_run.ckpt_io.views.tree import TreeNode, ViewTree
from robust_run.errors import UserError
from robust_run.store.errors import NotFound
from robust_run.store.opening import open_store

#: A path is looked through upwards for the checkpoint that it leads into, so far at most.
DEPTH = 16


class RrckFileSystem(AbstractFileSystem):  # type: ignore[misc,unused-ignore]
    """Checkpoints and folders of checkpoints, as files."""

    protocol = "rrck"
    cachable = True

    def __init__(
        self, also: tuple[str, ...] = (), cache_bytes: int = 256 << 20, refresh_s: float = 1.0, **options: Any
    ) -> None:
        """`also`: roots of further targets. `refresh_s`: for so long, what was seen of a folder is believed."""
        super().__init__(use_listings_cache=False, **options)
        self._also = tuple(also)
        self._cache = UnitCache(cache_bytes)
        self._shelf = Shelf(self._opened, open_store, time.monotonic, refresh_s)

    @classmethod
    def _strip_protocol(cls, path: str | list[str]) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        if path.startswith("rrck://"):
            return parse(path).url
        return normal(path) if path else path

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        also = parse(path).also if path.startswith("rrck://") else ()
        return {"also": also} if also else {}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:  # noqa: ARG002
        """List a folder of checkpoints, or the files of one."""
        path = self._strip_protocol(path)
        tree, below = self._tree(path)
        node = self._look(tree, below)
        if not node.is_folder:
            return [self._entry(path, node)] if detail else [path]
        found = [self._entry(join(path, name), each) for name, each in tree.list(below).items()]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return name, type and size. Raises FileNotFoundError."""
        path = self._strip_protocol(path)
        tree, below = self._tree(path)
        return self._entry(path, self._look(tree, below))

    def modified(self, path: str) -> Any:
        """Return when the checkpoint was saved."""
        from datetime import datetime, timezone

        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def ukey(self, path: str) -> str:
        """Return what changes when the file does."""
        tree, below = self._tree(self._strip_protocol(path))
        node = self._look(tree, below)
        return f"{node.opened.source.manifest.uuid}/{below}" if node.opened is not None else str(path)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Open a file for reading. Raises FileNotFoundError; CheckpointError for what is damaged; UserError for other modes."""
        if "r" not in mode or "+" in mode:
            raise UserError(
                f"{path}: mode {mode!r}; rrck:// is read-only: save with robust_run.ckpt_io.dcp.save, "
                "or storage_writer=dcp.RobustWriter(...)"
            )
        if "b" not in mode:
            import io

            words = {key: options.pop(key) for key in ("encoding", "errors", "newline") if key in options}
            return io.TextIOWrapper(self.open(path, "rb", **options), **words)
        path = self._strip_protocol(path)
        tree, below = self._tree(path)
        node = self._look(tree, below)
        if node.file is None or node.opened is None:
            raise IsADirectoryError(f"{path} is a folder")
        opened = node.opened
        self._shelf.use(opened)
        return open_view(ViewReader(opened.source, node.file, self._cache), lambda: self._shelf.give_back(opened))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:  # noqa: ARG002
        """Return a file's bytes, or a range of them; counted from the end where negative."""
        with self.open(path) as file:
            size = file.seek(0, 2)
            first, last, _ = slice(start, end).indices(size)
            file.seek(first)
            data: bytes = file.read(max(0, last - first))
            return data

    def invalidate_cache(self, path: str | None = None) -> None:
        """Look again."""
        super().invalidate_cache(path)
        self._shelf.changed(path or "")

    def _opened(self, url: str) -> Checkpoint:
        return open_checkpoint(url, also=self._also)

    def _tree(self, path: str) -> tuple[ViewTree, str]:
        """Return the checkpoint that a path leads into and what is below it; or the folder that the path is."""
        url, below = path, ""
        for _ in range(DEPTH):
            if self._shelf.at(url) is not None:
                return ViewTree(url, self._shelf, open_store), below
            try:
                url, name = split(url)
            except UserError:
                break
            below = join(name, below) if below else name
        return ViewTree(path, self._shelf, open_store), ""

    def _look(self, tree: ViewTree, below: str) -> TreeNode:
        try:
            node = tree.look(below)
            if not below and node.opened is None:
                tree.list("")
        except NotFound as error:
            raise FileNotFoundError(str(error)) from error
        if not below and node.opened is not None and node.opened.is_one_file:
            return TreeNode(node.modified_s, next(iter(node.opened.files.values())), node.opened)
        return node

    @staticmethod
    def _entry(path: str, node: TreeNode) -> dict[str, Any]:
        return {
            "name": path,
            "type": "directory" if node.file is None else "file",
            "size": 0 if node.file is None else node.file.size_bytes,
            "mtime": node.modified_s,
        }
