"""Removing saves: copies of the manifest first, then what they vouch for."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.finding import FoundManifest, StoreOpener
from robust_run.ckpt_io.layout import MANIFEST_PATH, copy_path, parts_folder
from robust_run.ckpt_io.targets import Targets
from robust_run.errors import RobustRunError
from robust_run.store.types import Store


def remove_save(
    found: FoundManifest, where: Address, primary: Store, stores: StoreOpener, *, with_manifest: bool
) -> list[str]:
    """Remove what one save wrote; return what could not be removed, as messages.

    The primary's manifest stays unless `with_manifest`: another save's has taken its place. Targets that the caller did not name
    are touched only if they have a copy of the manifest, and only names with the save's own uuid.
    """
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
