"""The checkpoints in a root: which there are, which is the newest, which may go."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from robust_run.ckpt_io import address
from robust_run.ckpt_io.errors import ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.finding import StoreOpener, find_manifest, read_manifest
from robust_run.ckpt_io.manifest import size_bytes
from robust_run.ckpt_io.removing import remove_save
from robust_run.ckpt_io.retention import Found, Leftover, Removal, newest, plan_removals
from robust_run.errors import PlatformError
from robust_run.store import paths
from robust_run.store.errors import AccessDenied, NotFound, StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Entry, Store

__all__ = ["Found", "Leftover", "Removal", "latest", "list_checkpoints", "prune"]

#: What a save writes besides the manifest: parts, copies of the manifest, and what a store calls a file that is not finished yet.
#: Nothing else in a folder is ours.
_OURS = re.compile(r"(?:parts|MANIFEST)-([0-9a-f]{32})|\.robust-[0-9a-f]{32}\.part")
#: A save that is under way for longer than this is taken for dead.
GRACE_S = 24 * 3600.0
KEEP = 3


def list_checkpoints(root: str, also: Sequence[str] = (), *, stores: StoreOpener = open_store) -> list[Found]:
    """Return what lies in a root, by name; folders that have nothing of ours in them are left out.

    `also` are the roots of further targets: what unfinished saves left there is found as well.

    Raises:
        TargetLost: A root cannot be listed.
    """
    roots = _roots(root, also)
    names = {name for place in roots for name in _folders(place, stores)}
    found = [_look_at(name, roots, stores) for name in sorted(names)]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def latest(root: str, also: Sequence[str] = (), *, stores: StoreOpener = open_store) -> Found | None:
    """Return the newest valid checkpoint in a root; None if there is none, or no such root.

    Valid is its manifest: that all units are what they should be shows when they are read.

    Raises:
        TargetLost: The root cannot be listed.
    """
    return newest(list_checkpoints(root, also, stores=stores))


def prune(
    root: str,
    *,
    also: Sequence[str] = (),
    keep: int = KEEP,
    keep_every: int | None = None,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    stores: StoreOpener = open_store,
    now_s: Callable[[], float] = time.time,
) -> list[Removal]:
    """Remove old checkpoints and leftovers of saves that died; return what was (or, with `dry_run`, would be) removed.

    The newest valid checkpoint is never removed. See `retention.plan_removals` for the rules.

    Raises:
        TargetLost: A root cannot be listed, or something cannot be removed; what comes before it in the plan is gone.
        ValueError: The numbers are none.
    """
    found = list_checkpoints(root, also, stores=stores)
    removals = plan_removals(found, keep=keep, keep_every=keep_every, grace_s=grace_s, now_s=now_s())
    by_name = {checkpoint.name: checkpoint for checkpoint in found}
    roots = _roots(root, also)
    for removal in () if dry_run else removals:
        if removal.leftover is not None:
            _remove_leftover(address.join(roots[removal.leftover.target], removal.name), removal.leftover.path, stores)
        else:
            _remove_checkpoint(by_name[removal.name], roots, stores)
    return removals


def _roots(root: str, also: Sequence[str]) -> list[str]:
    return [address.normal(place) for place in (root, *also)]


def _folders(root: str, stores: StoreOpener) -> list[str]:
    """Return the names of the folders in a root; none if it is not there."""
    try:
        with closing(stores(root)) as store:
            return [entry.name for entry in store.list() if entry.is_folder]
    except NotFound:
        return []
    except StoreError as error:
        raise TargetLost(paths.shown(root), error.what) from error


def _look_at(name: str, roots: Sequence[str], stores: StoreOpener) -> Found | None:
    """Return what lies under a name; None if nothing of it is ours, or it is closed to us (as `lost+found` is)."""
    where = address.Address(address.join(roots[0], name), tuple(roots[1:]))
    url = paths.shown(where.url)
    try:
        with closing(stores(where.url)) as store:
            manifest = find_manifest(where, store, stores)
    except NotACheckpoint as error:
        left = _leftovers(where, None, stores)
        return Found(name, url, "unfinished", reason=error.reason, leftovers=left) if left else None
    except ManifestRefused as error:
        return Found(name, url, "damaged manifest", reason=error.reason)
    except TargetLost as error:
        if isinstance(error.__cause__, AccessDenied):
            return None
        raise
    if manifest.is_copy:
        return Found(
            name, url, "damaged manifest", reason="the primary has none that is valid, another target has a copy"
        )
    content = manifest.manifest
    return Found(
        name,
        url,
        "valid",
        step=content.step,
        created_s=content.created_s,
        size_bytes=size_bytes(content),
        uuid=content.uuid,
        leftovers=_leftovers(where, content.uuid, stores),
    )


def _leftovers(where: address.Address, uuid: str | None, stores: StoreOpener) -> tuple[Leftover, ...]:
    """Return what lies under a name, on all targets, of saves other than the one that its manifest is of."""
    found = []
    for target, folder in enumerate(where.folders):
        try:
            with closing(stores(folder)) as store:
                for entry in store.list():
                    match = _OURS.fullmatch(entry.name)
                    if match and match[1] != uuid:
                        found.append(Leftover(target, entry.name, _modified_s(store, entry)))
        except (NotFound, AccessDenied):
            continue
        except StoreError as error:
            raise TargetLost(paths.shown(folder), error.what) from error
    return tuple(found)


def _modified_s(store: Store, entry: Entry) -> float | None:
    """Return when something in a leftover was last written."""
    times = [entry.modified_s]
    if entry.is_folder:
        with suppress(StoreError):
            times += [part.modified_s for part in store.list(entry.name)]
    return max((time for time in times if time is not None), default=None)


def _remove_leftover(url: str, path: str, stores: StoreOpener) -> None:
    try:
        with closing(stores(url)) as store:
            store.remove(path)
        _remove_if_empty(url, stores)
    except StoreError as error:
        raise TargetLost(paths.shown(url), error.what) from error


def _remove_checkpoint(found: Found, roots: Sequence[str], stores: StoreOpener) -> None:
    """Copies first, then the manifest, then the parts: whatever of it is seen meanwhile is whole, or is no checkpoint."""
    where = address.Address(address.join(roots[0], found.name), tuple(roots[1:]))
    try:
        with closing(stores(where.url)) as store:
            content = read_manifest(store, where.url)
            if content.manifest.uuid != found.uuid:
                return  # it was saved anew since we looked
            failed = remove_save(content, where, store, stores, with_manifest=True)
    except NotACheckpoint:
        return
    except StoreError as error:
        raise TargetLost(paths.shown(where.url), error.what) from error
    if failed:
        raise TargetLost(paths.shown(where.url), f"not all of it could be removed: {failed[0]}")
    for folder in where.folders:
        with suppress(PlatformError):
            _remove_if_empty(folder, stores)


def _remove_if_empty(url: str, stores: StoreOpener) -> None:
    """Remove a checkpoint's folder that has nothing in it any more."""
    with closing(stores(url)) as store:
        try:
            if store.list():
                return
        except NotFound:
            return
    root, name = address.split(url)
    with closing(stores(root)) as store:
        store.remove(name)
