"""What layers come to, by the OCI image specification: a model that is slow, plain, and shares nothing with what it judges.

A file system is a table, path → node; "" is not in it. Hard links are the same node under several paths.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.prefetch.image.tools import Layer


@dataclass(eq=False)
class Node:
    """What is at a path."""

    kind: str
    """folder, file, link, fifo or device."""
    data: bytes = b""
    """Of a file; the target of a link."""


@dataclass(frozen=True)
class Op:
    """One entry of a layer."""

    kind: str
    """folder, file, link, fifo, device, hard, whiteout or opaque."""
    path: str
    data: str = ""
    """Of a file; the target of a link."""

    def into(self, layer: Layer) -> None:
        import tarfile

        above, _slash, name = self.path.rpartition("/")
        prefix = f"{above}/" if above else ""
        if self.kind == "folder":
            layer.folder(self.path)
        elif self.kind == "file":
            layer.file(self.path, self.data.encode())
        elif self.kind == "link":
            layer.link(self.path, self.data)
        elif self.kind == "hard":
            layer.hard_link(self.path, self.data)
        elif self.kind == "whiteout":
            layer.file(f"{prefix}.wh.{name}")
        elif self.kind == "opaque":
            layer.file(f"{self.path}/.wh..wh..opq" if self.path else ".wh..wh..opq")
        else:
            kinds = {"fifo": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE}
            layer.entry(self.path, type=kinds[self.kind], devmajor=1, devminor=3)


class RefusedError(Exception):
    """The layers cannot be an image."""


class Model:
    """A file system to which layers are applied."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def apply(self, ops: list[Op]) -> None:
        hidden: list[str] = []
        for op in ops:
            if op.kind == "whiteout":
                above, _slash, name = op.path.rpartition("/")
                place = self.resolved(above)
                if self.is_folder(place):
                    hidden.append(f"{place}/{name}".strip("/"))
            elif op.kind == "opaque":
                place = self.resolved(op.path)
                hidden += (
                    [path for path in self.nodes if path.rpartition("/")[0] == place] if self.is_folder(place) else []
                )
        for path in hidden:
            self.remove(path)
        for op in ops:
            if op.kind not in ("whiteout", "opaque"):
                self.add(op)

    def add(self, op: Op) -> None:
        above, _slash, name = op.path.rpartition("/")
        place = self.resolved(above)
        parts = place.split("/") if place else []
        for count in range(1, len(parts) + 1):
            if not self.is_folder("/".join(parts[:count])):
                self.put("/".join(parts[:count]), Node("folder"))
        path = f"{place}/{name}".strip("/")
        if op.kind == "hard":
            above, _slash, name = op.data.strip("/").rpartition("/")
            target = f"{self.resolved(above)}/{name}".strip("/")
            node = self.nodes.get(target)
            if node is None or node.kind == "folder":
                raise RefusedError
            self.put(path, node)
        elif op.kind != "folder":
            self.put(path, Node(op.kind, op.data.encode()))
        elif not self.is_folder(path):
            self.put(path, Node("folder"))

    def put(self, path: str, node: Node) -> None:
        if self.nodes.get(path) is not node:
            self.remove(path)
            self.nodes[path] = node

    def remove(self, path: str) -> None:
        for other in [other for other in self.nodes if other == path or other.startswith(f"{path}/")]:
            del self.nodes[other]

    def is_folder(self, path: str) -> bool:
        return not path or (path in self.nodes and self.nodes[path].kind == "folder")

    def resolved(self, path: str) -> str:
        done: list[str] = []
        left = [part for part in path.split("/") if part]
        links = 0
        while left:
            part = left.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            node = self.nodes.get("/".join([*done, part]))
            if node is None or node.kind != "link":
                done.append(part)
                continue
            links += 1
            if links > 40:
                raise RefusedError
            target = node.data.decode()
            done = [] if target.startswith("/") else done
            left = [part for part in target.split("/") if part not in ("", ".")] + left
        return "/".join(done)

    def shown(self) -> dict[str, tuple[str, bytes]]:
        """Return path → (kind, data) of what an image has."""
        return {path: (node.kind, node.data) for path, node in self.nodes.items() if node.kind != "device"}

    def same(self) -> set[frozenset[str]]:
        """Return which paths are one file."""
        by_node: dict[int, set[str]] = {}
        for path, node in self.nodes.items():
            if node.kind not in ("folder", "device"):
                by_node.setdefault(id(node), set()).add(path)
        return {frozenset(paths) for paths in by_node.values()}


def shown_in(tree: Path) -> dict[str, tuple[str, bytes]]:
    """Return path → (kind, data) of a folder."""
    found: dict[str, tuple[str, bytes]] = {}
    for path in tree.rglob("*"):
        name = str(path.relative_to(tree))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path).encode())
        elif path.is_dir():
            found[name] = ("folder", b"")
        else:
            found[name] = ("fifo", b"") if path.is_fifo() else ("file", path.read_bytes())
    return found


def same_in(tree: Path) -> set[frozenset[str]]:
    """Return which paths of a folder are one file."""
    by_inode: dict[int, set[str]] = {}
    for path in tree.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            by_inode.setdefault(path.lstat().st_ino, set()).add(str(path.relative_to(tree)))
    return {frozenset(paths) for paths in by_inode.values()}
