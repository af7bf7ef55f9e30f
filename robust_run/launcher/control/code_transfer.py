"""Transfer of a code tree to another node, in parts that fit a message; what arrives is verified by its digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from robust_run.launcher.records.code.content_store import digest_of
from robust_run.launcher.records.code.errors import CodeError, CodeStoreError, LackingError
from robust_run.launcher.records.code.tree_store import TreeStore, decode_tree
from robust_run.launcher.records.code.types import CodeTree, TreeParts

#: Contents in one part; a single one may be as large.
PART_BYTES = 2 << 20


def parts_of(store: TreeStore, tree_id: str, wanted: Iterable[str] | None = None) -> Iterator[TreeParts]:
    """Yield a tree: first what it is, then its contents (`wanted`: only these digests). What cannot be had is said in one."""
    try:
        tree = store.tree(tree_id)
        yield TreeParts(tree=tree_id, manifest=store.manifest(tree_id))
        yield from contents_of(store, tree_id, [file.digest for file in tree.files if not file.link], wanted)
    except (CodeStoreError, CodeError) as error:
        yield TreeParts(tree=tree_id, missing=str(error))


def contents_of(
    store: TreeStore, tree_id: str, digests: Iterable[str], wanted: Iterable[str] | None = None
) -> Iterator[TreeParts]:
    """Yield the contents of these digests, each once."""
    chosen = None if wanted is None else set(wanted)
    batch: list[bytes] = []
    size = 0
    for digest in dict.fromkeys(digests):
        if chosen is not None and digest not in chosen:
            continue
        data = store.get(digest)
        if batch and size + len(data) > PART_BYTES:
            yield TreeParts(tree=tree_id, objects=tuple(batch))
            batch, size = [], 0
        batch.append(data)
        size += len(data)
    if batch:
        yield TreeParts(tree=tree_id, objects=tuple(batch))


class Receiver:
    """Takes the parts of one tree into a store. Nothing is kept that the tree does not name."""

    def __init__(self, store: TreeStore, tree_id: str) -> None:
        self.tree_id = tree_id
        self._store = store
        self._tree: CodeTree | None = None
        self._wanted: set[str] = set()

    def take(self, parts: TreeParts) -> bool:
        """Take a part in; return whether the tree is complete. Raises CodeError, LackingError, StoreError."""
        if parts.tree != self.tree_id:
            return False
        if parts.missing:
            raise LackingError(f"the code {self.tree_id[:10]} cannot be had: {parts.missing}")
        if parts.manifest and self._tree is None:
            self._tree = decode_tree(parts.manifest, self.tree_id)
            self._wanted = set(self._store.missing(self._tree))
        for data in parts.objects:
            digest = digest_of(data)
            if digest not in self._wanted:
                continue  # of another tree, twice, or forged
            self._store.put(data)
            self._wanted.discard(digest)
        if self._tree is not None and not self._wanted:
            self._store.put_tree(self._tree)
            return True
        return False
