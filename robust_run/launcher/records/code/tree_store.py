"""Store of code versions: trees by their digest, above their contents, and folders that workers run from.

<run directory>/code/
    objects/ab/cdef...      the content of a file, read-only, named by its SHA-256 (see `content_store`)
    trees/<id>.json         a tree: paths, digests, links; written when all its contents are there
    at/<id>/                a tree as files, read-only, made when it is first needed

All that is read is checked against its name, so a disk that rots or a hand that edits is found out, not run. Several nodes may
share one store: files appear whole, and the second writer finds what it wants.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import RobustRunError
from robust_run.launcher.records.code.content_store import OURS, READ_ONLY, SHORT, ContentStore, digest_of, make_folders
from robust_run.launcher.records.code.errors import CodeError, CodeStoreError, LackingError
from robust_run.launcher.records.code.names import check_tree, is_digest
from robust_run.launcher.records.code.reading import read_file
from robust_run.launcher.records.code.scan import Scan
from robust_run.launcher.records.code.types import (
    HOLDS_RUNS,
    LIMITS,
    SCHEMA,
    CapturedCode,
    CodeFile,
    CodeLimits,
    CodeTree,
    Left,
)

LARGEST_TREE_BYTES = 8 << 20

_READ_ONLY_PROGRAM = 0o500


def encode_tree(tree: CodeTree) -> bytes:
    """Return a tree as it is written to disk; its id is the digest of this."""
    return msgspec.json.encode(tree) + b"\n"


def decode_tree(data: bytes, tree_id: str, limits: CodeLimits = LIMITS) -> CodeTree:
    """Return the tree of this id. Raises CodeError for anything else, and for one that may not be written to disk."""
    if len(data) > LARGEST_TREE_BYTES or digest_of(data) != tree_id:
        raise CodeError(f"what came as code {tree_id[:SHORT]!r} is something else")
    try:
        tree = json_decoder(CodeTree).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodeError(f"the code {tree_id[:SHORT]} cannot be read: {error}") from error
    if tree.schema != SCHEMA:
        raise CodeError(
            f"the code {tree_id[:SHORT]} has schema {tree.schema}, this robust-run knows {SCHEMA}; use its own"
        )
    return check_tree(tree, limits)


def id_of(tree: CodeTree) -> str:
    """Return a tree's id."""
    return digest_of(encode_tree(tree))


class TreeStore(ContentStore):
    """One store of trees. Everything raises StoreError where the disk does not do what it should."""

    # --- trees

    def missing(self, tree: CodeTree) -> list[str]:
        """Return the digests of a tree that are not here, each once."""
        wanted = dict.fromkeys(file.digest for file in tree.files if not file.link)
        return [digest for digest in wanted if not os.path.exists(self.place_of(digest))]

    def _tree(self, tree_id: str) -> str:
        if not is_digest(tree_id):
            raise CodeError(f"{tree_id[:80]!r} is no tree's id")
        return os.path.join(self.folder, "trees", f"{tree_id}.json")

    def has(self, tree_id: str) -> bool:
        """Whether a tree is here, contents and all."""
        return is_digest(tree_id) and os.path.exists(self._tree(tree_id))

    def put_tree(self, tree: CodeTree) -> str:
        """Keep a tree whose contents are here, and return its id. Raises LackingError where one is not."""
        check_tree(tree)
        lacking = self.missing(tree)
        if lacking:
            raise LackingError(f"{len(lacking)} of the code's contents are not here")
        data = encode_tree(tree)
        tree_id = digest_of(data)
        if not self.has(tree_id):
            self.keep(self._tree(tree_id), data)
        return tree_id

    def tree(self, tree_id: str) -> CodeTree:
        """Return a tree. Raises LackingError, StoreError, CodeError."""
        return decode_tree(self.manifest(tree_id), tree_id)

    def manifest(self, tree_id: str) -> bytes:
        """Return a tree as it is on disk, unchecked. Raises LackingError."""
        path = self._tree(tree_id)
        try:
            data = read_file(path, LARGEST_TREE_BYTES)
        except OSError as error:
            raise LackingError(
                f"the code {tree_id[:SHORT]} is not in {self.folder!r}: {error.strerror or error}"
            ) from error
        return data if data is not None else b""

    def put_captured(self, scan: Scan) -> CapturedCode:
        """Keep what a look through a folder found."""
        try:
            files = tuple(
                CodeFile(path=found.path, link=found.link)
                if found.link
                else CodeFile(
                    path=found.path,
                    digest=self.put(found.data),
                    size_bytes=len(found.data),
                    executable=found.executable,
                )
                for found in scan.files
            )
            tree = CodeTree(files=files)
            self.put_tree(tree)
        except OSError as error:
            raise CodeStoreError(f"cannot keep the code in {self.folder!r}: {error.strerror or error}") from error
        return CapturedCode(tree=tree, left=tuple(scan.left))

    # --- folders

    def materialise(self, tree_id: str, links: Mapping[str, str] | None = None) -> str:
        """Return the folder of a tree as files; make it if it is not there. Raises LackingError, StoreError.

        `links`: what else it leads to, by path: absolute places of what was left where it is (see `links_to`).
        """
        path = os.path.join(self.folder, "at", tree_id[:SHORT])
        tree = self.tree(tree_id)
        if os.path.isdir(path):
            if is_intact(tree, path):
                return path
            self._put_aside(path)
        building = os.path.join(self.folder, "at", f".{os.urandom(6).hex()}")
        try:
            make_folders(building)
            self.write_out(tree, building)
            _lead_to(building, tree, links or {})
            os.rename(building, path)
        except (OSError, RobustRunError) as error:
            import shutil

            shutil.rmtree(building, ignore_errors=True)
            if isinstance(error, RobustRunError):
                raise
            if os.path.isdir(path):
                return path  # another node was faster
            raise CodeStoreError(f"cannot put the code into {path!r}: {error.strerror or error}") from error
        return path

    def lead_to_kept(self, links: str, root: str, tree_id: str, scan: Scan) -> None:
        """Have two links lead to a folder and to what it held. Raises LackingError, StoreError. See `tracer.arm.steady`."""
        path = os.path.join(self.folder, "at", tree_id[:SHORT])
        kept = os.path.join(links, "kept")
        try:
            if os.path.islink(kept) and os.readlink(kept) == path and os.path.isdir(path):
                return
            path = self.materialise(tree_id, links_to(root, scan.left))
            digests = {file.path: file.digest for file in self.tree(tree_id).files}
            for found in scan.files:
                if not found.link and digests.get(found.path) == digest_of(found.data):
                    times = (found.modified_ns, found.modified_ns)
                    os.utime(os.path.join(path, found.path), ns=times)  # the same time says: not edited since
            make_folders(links)
            for name, target in (("root", root), ("kept", path)):
                beside = os.path.join(links, f".{os.urandom(6).hex()}")
                os.symlink(target, beside)
                os.rename(beside, os.path.join(links, name))
        except OSError as error:
            raise CodeStoreError(f"cannot keep the code in {self.folder!r}: {error.strerror or error}") from error

    def _put_aside(self, path: str) -> None:
        """What must not change was changed; what runs from there may go on, the next attempt does not."""
        try:
            os.rename(path, f"{path}.changed-{os.urandom(3).hex()}")
        except OSError as error:
            raise CodeStoreError(f"{path!r} was changed and cannot be put aside: {error.strerror or error}") from error

    def write_out(self, tree: CodeTree, folder: str) -> None:
        """Write a tree's files into an empty folder. Every content is checked. Raises OSError, StoreError."""
        for parent in _folders(tree):
            os.mkdir(os.path.join(folder, parent), OURS)
        for file in tree.files:
            target = os.path.join(folder, file.path)
            if file.link:
                os.symlink(file.link, target)
            else:
                self._place(file, target)

    def _place(self, file: CodeFile, target: str) -> None:
        data = self.get(file.digest)  # checks it; what is not as it should be must not run
        # A copy, not a hard link: what a program does to its own code must not be done to the store.
        _create(target, data, _READ_ONLY_PROGRAM if file.executable else READ_ONLY)


def _create(path: str, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def is_intact(tree: CodeTree, folder: str, but_for: Callable[[str], bool] = lambda _: False) -> bool:
    """Whether the files of a tree are in a folder as they should be, among any others. `but_for`: paths that may differ."""
    try:
        for file in tree.files:
            if but_for(file.path):
                continue
            path = os.path.join(folder, file.path)
            if file.link:
                if os.readlink(path) != file.link:
                    return False
            elif os.path.islink(path) or digest_of(read_file(path, LIMITS.largest_file_bytes) or b"") != file.digest:
                return False
    except OSError:
        return False
    return True


def _folders(tree: CodeTree) -> list[str]:
    """Return the folders of a tree, each after the one that it is in."""
    folders: set[str] = set()
    for file in tree.files:
        parent = file.path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    return sorted(folders)


def links_to(root: str, left: Iterable[Left]) -> dict[str, str]:
    """Return where copies of a folder lead to, by path; nowhere for a folder that they have one of their own for.

    What Python has compiled is of the one folder alone: it would be taken for that of another version (see `bytecode`).
    """
    return {
        each.path: "" if each.reason == HOLDS_RUNS else os.path.join(root, each.path)
        for each in left
        if os.path.basename(each.path) != "__pycache__"
    }


def _lead_to(folder: str, tree: CodeTree, links: Mapping[str, str]) -> None:
    """Put links beside the code; never over it, and only into folders that it has or that are to be made."""
    have = {"", *_folders(tree)}
    taken = {file.path for file in tree.files} | have
    for path, target in sorted(links.items()):
        if path in taken or path.rpartition("/")[0] not in have:
            continue
        with suppress(OSError):
            if target:
                os.symlink(target, os.path.join(folder, path))
            else:
                os.mkdir(os.path.join(folder, path), OURS)
                have.add(path)
