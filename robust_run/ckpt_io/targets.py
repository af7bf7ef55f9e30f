"""The targets of one checkpoint as stores, opened when they are first needed.

A manifest may come from anybody, and what it names is followed only where that cannot lead to places that are none of the
caller's: to a folder on the primary's own host that has a copy of this very manifest, or where the caller named it.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from robust_run.ckpt_io import address
from robust_run.ckpt_io.errors import CheckpointError, ManifestRefused, TargetLost
from robust_run.ckpt_io.finding import FoundManifest, StoreOpener, read_manifest
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, copy_path
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.errors import RobustRunError
from robust_run.store import paths
from robust_run.store.errors import StoreError, is_transient
from robust_run.store.types import Store

#: How often a copy of the manifest is asked for before its target counts as lost.
_ATTEMPTS = 3


def folder_of(target: int, where: address.Address, manifest: Manifest) -> tuple[str, bool]:
    """Return the URL of a target's folder, and whether the caller named it. Pure.

    A target that the caller named by the URL that the manifest has, is that one. Otherwise, as many `also` as the checkpoint has
    further targets are those, in order: it was moved, or is reached by another way.

    Raises:
        TargetLost: The manifest names another host, and the caller did not name it.
    """
    if target == 0:
        return where.url, True
    listed = manifest.targets[target]
    for folder in where.folders[1:]:
        if paths.shown(folder) == listed:
            return folder, True
    if len(where.also) == len(manifest.targets) - 1:
        return where.folders[target], True
    if address.origin(listed) == address.origin(where.url):
        return listed, False
    raise TargetLost(
        paths.shown(listed),
        "named by the manifest, but not on the host of the manifest: to allow it, name its root with 'also'",
    )


class Targets:
    """The stores of a checkpoint's targets. Safe for threads."""

    def __init__(self, where: address.Address, found: FoundManifest, primary: Store, stores: StoreOpener) -> None:
        self._where = where
        self._header, self._is_copy = found.header, found.is_copy
        self._manifest = found.manifest
        self._open = stores
        self._lock = threading.Lock()
        self._stores: dict[int, Store] = {0: primary}
        self._lost: dict[int, TargetLost] = {}

    @property
    def threads(self) -> int:
        """How many reads at once suit the targets, by the primary."""
        return self._stores[0].threads

    def url(self, target: int) -> str:
        """Return a target's folder, for messages."""
        try:
            return paths.shown(folder_of(target, self._where, self._manifest)[0])
        except TargetLost as error:
            return error.target

    def store(self, target: int) -> Store:
        """Return the store of a target.

        Raises:
            TargetLost: It cannot be reached, or may not be followed. Stays so.
        """
        found = self._stores.get(target)
        if found is not None:
            return found
        with self._lock:
            if target in self._lost:
                raise self._lost[target]
            if target not in self._stores:
                try:
                    self._stores[target] = self._opened(target)
                except TargetLost as error:
                    self._lost[target] = error
                    raise
            return self._stores[target]

    def lose(self, target: int, error: StoreError) -> TargetLost:
        """Note that a target does not answer any more; return that as an error."""
        with self._lock:
            return self._lost.setdefault(target, TargetLost(self.url(target), error.what))

    def lost(self, target: int) -> TargetLost | None:
        """Return why a target counts as lost, if it does."""
        return self._lost.get(target)

    def is_replaced(self) -> bool:
        """Return whether another manifest has taken the place of ours on the primary."""
        try:
            return not self._is_copy and not self._has_manifest(self._stores[0], MANIFEST_PATH)
        except StoreError:
            return False

    def check_manifest(self, target: int) -> None:
        """Read a target's copy of the manifest, or the primary's manifest, whole.

        Raises:
            NotACheckpoint, ManifestRefused, TargetLost: It is missing, damaged, or cannot be read.
        """
        path = copy_path(self._manifest.uuid) if target else MANIFEST_PATH
        if read_manifest(self.store(target), self.url(target), path).header != self._header:
            raise ManifestRefused(f"{path} is not of this save", self.url(target))

    def close(self) -> None:
        """Close all stores."""
        with self._lock:
            for store in self._stores.values():
                with suppress(RobustRunError):
                    store.close()

    def _opened(self, target: int) -> Store:
        folder, named = folder_of(target, self._where, self._manifest)
        try:
            store = self._open(folder)
        except CheckpointError:
            raise
        except RobustRunError as error:
            raise TargetLost(paths.shown(folder), str(error)) from error
        if not named:
            self._check_copy(store, folder)
        return store

    def _check_copy(self, store: Store, folder: str) -> None:
        path = copy_path(self._manifest.uuid)
        for attempt in range(_ATTEMPTS):
            try:
                if self._has_manifest(store, path):
                    return
                reason = f"its {path} is not a copy of this manifest"
                break
            except StoreError as error:
                reason = (
                    f"its {path} cannot be read ({error.what}): it does not hold this checkpoint, or is not mounted"
                )
                if not is_transient(error) or attempt == _ATTEMPTS - 1:
                    break
        with suppress(RobustRunError):
            store.close()
        raise TargetLost(paths.shown(folder), f"{reason}; if it should be used all the same, name its root with 'also'")

    def _has_manifest(self, store: Store, path: str) -> bool:
        found = bytearray(len(self._header))
        store.read_into(path, 0, [memoryview(found)])
        return found == self._header
