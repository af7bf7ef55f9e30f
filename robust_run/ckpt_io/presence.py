"""Whether the parts of a checkpoint are there, by their names and lengths: one list of a folder per target, nothing is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from robust_run.ckpt_io.address import Address, split
from robust_run.ckpt_io.errors import TargetLost
from robust_run.ckpt_io.finding import StoreOpener
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.layout import FileLayout, parts_folder
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.ckpt_io.targets import folder_of
from robust_run.errors import RobustRunError
from robust_run.store import paths
from robust_run.store.errors import NotFound, is_transient
from robust_run.store.types import Store


def wrong_part(uuid: str, layouts: Sequence[FileLayout], target: int, store: Store) -> str | None:
    """Return what is wrong with the first part on a target that is missing or of another length; None if all are right.

    Raises:
        StoreError: The target does not tell.
    """
    expected = {layout.part_path(target): layout.part_bytes(target) for layout in layouts}
    if not any(expected.values()):
        return None
    folder = parts_folder(uuid)
    try:
        found = {paths.join(folder, entry.name): entry.size_bytes for entry in store.list(folder)}
    except NotFound:
        found = {}
    for path, size in expected.items():
        if size and found.get(path) != size:
            return f"part {path} should have {size} bytes and has {found.get(path, 'none')}"
    return None


class Presence:
    """Looks at the parts of many checkpoints; asks a target that does not answer only once."""

    def __init__(self, stores: StoreOpener) -> None:
        self._stores = stores
        self._silent: set[str] = set()
        """Roots that did not answer."""

    def fault(self, where: Address, manifest: Manifest) -> str | None:
        """Return what is wrong with a checkpoint's parts; None if nothing is, as far as targets can be asked."""
        layouts = manifests.layouts(manifest)
        for target in range(len(manifest.targets)):
            try:
                folder, _ = folder_of(target, where, manifest)
            except TargetLost:  # on another host, which the caller did not name
                continue
            root = split(folder)[0]
            if root in self._silent:
                continue
            try:
                with closing(self._stores(folder)) as store:
                    wrong = wrong_part(manifest.uuid, layouts, target, store)
            except RobustRunError as error:
                if is_transient(error):
                    self._silent.add(root)
                continue
            if wrong is not None:
                return f"{paths.shown(folder)}: {wrong}"
        return None
