"""Removing saves: copies of the manifest first, then what they vouch for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing, suppress

from robust_run.ckpt_io.address import Address, split
from robust_run.ckpt_io.errors import TargetLost
from robust_run.ckpt_io.finding import FoundManifest, StoreOpener
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, copy_path, parts_folder
from robust_run.ckpt_io.targets import Targets
from robust_run.errors import RobustRunError
from robust_run.store import paths
from robust_run.store.errors import NotFound
from robust_run.store.opening import local_path
from robust_run.store.types import Store

#: What a save writes besides the manifest: parts, copies of the manifest, and what a store calls a file that is not finished yet.
#: Nothing else in a folder is ours. The group is the save's uuid.
OURS = re.compile(r"(?:parts|MANIFEST)-([0-9a-f]{32})|\.robust-[0-9a-f]{32}\.part")


def is_link(url: str) -> bool:
    """Return whether a folder is a symbolic link of this machine's."""
    return paths.scheme_of(url) in ("", "file") and os.path.islink(local_path(url))


def refuse_link(url: str) -> None:
    """Raise TargetLost if a checkpoint's folder is a link: what it leads to is not removed under another name."""
    if is_link(url):
        raise TargetLost(paths.shown(url), "a symbolic link: not removed; what it leads to has a name of its own")


def remove_if_empty(url: str, stores: StoreOpener) -> None:
    """Remove a checkpoint's folder if it has nothing in it (any more). Raises StoreError."""
    if paths.scheme_of(url) in ("", "file"):
        with suppress(OSError):  # in one step: another save may be filling it
            os.rmdir(local_path(url))
        return
    with closing(stores(url)) as store:
        try:
            if store.list():
                return
        except NotFound:
            return
    root, name = split(url)
    with closing(stores(root)) as store:
        store.remove(name)


def remove_save(
    found: FoundManifest, where: Address, primary: Store, stores: StoreOpener, *, with_manifest: bool
) -> list[str]:
    """Remove what one save wrote; return what could not be removed, as messages.

    The primary's manifest stays unless `with_manifest`: another save's has taken its place. Targets that the caller did not name
    are touched only if they have a copy of the manifest, and only names with the save's own uuid.

    Raises:
        TargetLost: The whole checkpoint should go, and its folder on a target that the caller named is a link.
        StoreError: The primary's manifest cannot be removed.
    """
    if with_manifest:
        for folder in where.folders:
            refuse_link(folder)
    manifest, failed = found.manifest, list[str]()
    opened = _Opened(found, where, primary, stores, failed)

    def remove_copy(target: int, store: Store) -> None:
        if target:
            store.remove(copy_path(manifest.uuid))

    opened.on_all(remove_copy)  # all of them before the next, so that none vouches for what is gone
    if with_manifest:
        primary.remove(MANIFEST_PATH)
    opened.on_all(lambda _target, store: store.remove(parts_folder(manifest.uuid)))
    opened.close()
    return failed


class _Opened:
    """The targets that may be touched, all opened before anything is removed: copies of the manifest are what shows them."""

    def __init__(
        self, found: FoundManifest, where: Address, primary: Store, stores: StoreOpener, failed: list[str]
    ) -> None:
        self._failed = failed
        self._targets = Targets(where, found, primary, stores)
        self._stores: dict[int, Store] = {}
        for target in range(len(found.manifest.targets)):
            try:
                self._stores[target] = self._targets.store(target)
            except RobustRunError as error:
                failed.append(str(error))

    def on_all(self, remove: Callable[[int, Store], None]) -> None:
        for target, store in self._stores.items():
            try:
                remove(target, store)
            except RobustRunError as error:
                self._failed.append(str(error))

    def close(self) -> None:
        """Close all but the primary, which is the caller's."""
        for target, store in self._stores.items():
            if target:
                store.close()
