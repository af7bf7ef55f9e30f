"""Finding the manifest of a checkpoint: on its primary target, or a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import tenacity

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.errors import CheckpointError, ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, copy_path
from robust_run.ckpt_io.rules.manifest import HEADER_BYTES, MANIFEST_BYTES, decode
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.store import paths
from robust_run.store.errors import NotFound, StoreError, TooLarge, Unsupported, is_transient
from robust_run.store.types import Store

StoreOpener = Callable[[str], Store]
_ATTEMPTS = 3
_COPY_PREFIX = copy_path("")
#: Copies that are looked at on one target; more than two take a save that died several times.
_COPIES_MOST = 64


class FoundManifest(NamedTuple):
    """A manifest, and its bytes as they are stored."""

    manifest: Manifest
    data: bytes
    is_copy: bool = False
    """It is not the primary's: that is missing or damaged."""

    @property
    def header(self) -> bytes:
        """Its first line: digest and length of the rest."""
        return self.data[: self.data.index(b"\n") + 1]


def find_manifest(where: Address, primary: Store, stores: StoreOpener) -> FoundManifest:
    """Return the manifest of a checkpoint; if the primary has none that is valid, the newest copy on the targets in the address.

    A copy is written when all parts are durable, and removed before them: what it says is there.

    Raises:
        NotACheckpoint, ManifestRefused, TargetLost: Of the primary, if there is no copy.
    """
    try:
        return read_manifest(primary, where.url)
    except (NotACheckpoint, ManifestRefused):
        copies = [copy for folder in where.folders[1:] for copy in _copies(folder, stores)]
        if not copies:
            raise
        return max(copies, key=lambda copy: copy.manifest.created_s)._replace(is_copy=True)


def read_manifest(store: Store, url: str, path: str = MANIFEST_PATH) -> FoundManifest:
    """Read one manifest.

    Raises:
        NotACheckpoint, ManifestRefused, TargetLost: It is not there, not valid, or cannot be read.
    """
    shown = paths.shown(url)
    try:
        data = _read_all(store, path)
        return FoundManifest(decode(data), data)
    except ManifestRefused as error:
        raise ManifestRefused(error.reason, f"{shown}/{path}") from error
    except NotFound as error:
        raise NotACheckpoint(shown, f"there is no {path} in it") from error
    except TooLarge as error:
        raise ManifestRefused(error.what, f"{shown}/{path}") from error
    except StoreError as error:
        raise TargetLost(shown, f"{path} cannot be read: {error.what}") from error


def _read_all(store: Store, path: str) -> bytes:
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_transient),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(0.1, max=2.0),
        reraise=True,
    )
    return retrying(store.read_all, path, HEADER_BYTES + MANIFEST_BYTES)


def _copies(folder: str, stores: StoreOpener) -> list[FoundManifest]:
    """Return the valid copies on one target."""
    found = []
    try:
        with closing(stores(folder)) as store:
            names = [entry.name for entry in store.list() if entry.name.startswith(_COPY_PREFIX)]
            for name in names[:_COPIES_MOST]:
                try:
                    copy = read_manifest(store, folder, name)
                except CheckpointError:
                    continue
                if copy_path(copy.manifest.uuid) == name:
                    found.append(copy)
    except (StoreError, Unsupported):
        pass
    return found
