"""The checkpoints in a root: which there are, which is the newest, which may go."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from robust_run.ckpt_io import address, storage_clock
from robust_run.ckpt_io.errors import ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.finding import FoundManifest, StoreOpener, find_manifest, read_manifest
from robust_run.ckpt_io.meetings import meetings_of, remove_meeting_of
from robust_run.ckpt_io.newest import WRITTEN_BY, look, newest_whole
from robust_run.ckpt_io.presence import Presence
from robust_run.ckpt_io.removing import OURS, refuse_link, remove_if_empty, remove_save
from robust_run.ckpt_io.rules.keeping import MARK, KeepNewest
from robust_run.ckpt_io.rules.keeping import plan as plan_of_rule
from robust_run.ckpt_io.rules.manifest import size_bytes
from robust_run.ckpt_io.rules.retention import (
    CheckpointRemoval,
    Leftover,
    RootEntry,
    State,
    newest,
    plan_meetings,
    plan_removals,
)
from robust_run.ckpt_io.seen import SeenCheckpoint, is_temporary
from robust_run.errors import PlatformError
from robust_run.store import paths
from robust_run.store.errors import AccessDenied, NotFound, StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Entry, Store

__all__ = ["CheckpointRemoval", "Leftover", "RootEntry", "latest", "list_checkpoints", "prune"]

#: A save that is under way for longer than this is taken for dead.
GRACE_S = 24 * 3600.0
#: The end of a job takes some minutes at most: what its nodes told each other then is no leftover before, whatever the grace.
MEETING_S = 3600.0
KEEP = 3


def list_checkpoints(root: str, also: Sequence[str] = (), *, stores: StoreOpener = open_store) -> list[RootEntry]:
    """Return what lies in a root, by name; folders that have nothing of ours in them are left out.

    `also` are the roots of further targets: what unfinished saves left there is found as well. Of parts, names and lengths are
    looked at, on all targets that answer; what is in them shows when they are read.

    Raises:
        TargetLost: A root cannot be listed.
    """
    roots = _roots(root, also)
    is_link: dict[str, bool] = {}
    for place in roots:
        for entry in _folders(place, stores):
            is_link[entry.name] = entry.is_link or is_link.get(entry.name, False)
    presence = Presence(stores)
    found = [_look_at(name, roots, stores, presence, is_link=is_link[name]) for name in sorted(is_link)]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def latest(root: str, also: Sequence[str] = (), *, stores: StoreOpener = open_store) -> RootEntry | None:
    """Return the newest valid checkpoint in a root; None if there is none, or no such root. What has a temporary name is none.

    Its manifest is valid, and its parts are there, as long as they should be: what is in them shows when they are read. In a
    folder of this machine it is the one that a job with `--ckpt-dir` goes on from.

    Raises:
        TargetLost: The root cannot be listed.
    """
    place = address.normal(root)
    if also or stores is not open_store or paths.scheme_of(place):
        return newest(list_checkpoints(root, also, stores=stores))
    refused: set[str] = set()
    while True:
        seen = look(place, avoid=refused, most=sys.maxsize, whole=1)
        if seen.trouble:
            raise TargetLost(place, seen.trouble)
        whole = newest_whole(seen)
        if whole is None:
            return None
        try:
            return _described_newest(place, whole)
        except ManifestRefused:  # its digest is right, and yet it contradicts itself
            refused.add(whole.uuid)


def _described_newest(root: str, whole: SeenCheckpoint) -> RootEntry:
    """Return more of a checkpoint that was found whole; if it was removed or replaced since then, what was seen of it."""
    where = address.Address(address.join(root, whole.name))
    seen = RootEntry(
        whole.name, where.url, "valid", whole.step, whole.created_s, None, whole.uuid, is_link=whole.is_link
    )
    try:
        with closing(open_store(where.url)) as store:
            manifest = read_manifest(store, where.url)
    except (NotACheckpoint, TargetLost):
        return seen
    if manifest.manifest.uuid != whole.uuid:
        return seen
    left = () if whole.is_link else _leftovers(where, whole.uuid, open_store)
    return _described(whole.name, where.url, manifest, None, left, is_link=whole.is_link)


def prune(
    root: str,
    *,
    also: Sequence[str] = (),
    keep: int = KEEP,
    keep_every: int | None = None,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    stores: StoreOpener = open_store,
    now_s: Callable[[], float] | None = None,
) -> list[CheckpointRemoval]:
    """Remove old checkpoints and leftovers of saves and jobs that died; return what was (or, with `dry_run`, would be) removed.

    The newest valid checkpoint is never removed, nor is anything behind a symbolic link. See `retention.plan_removals` for the
    rules. `now_s`: the clock by which leftovers are old; None: the earlier one of this node's and that of storage, which is asked
    by writing a small file (not with `dry_run`: then by this node's alone).

    Raises:
        TargetLost: A root cannot be listed, or something cannot be removed; what comes before it in the plan is gone.
        ValueError: The numbers are none.
    """
    found = list_checkpoints(root, also, stores=stores)
    meetings = meetings_of(root, stores)

    def planned(at_s: float) -> list[CheckpointRemoval]:
        removals = plan_removals(found, keep=keep, keep_every=keep_every, grace_s=grace_s, now_s=at_s)
        return removals + plan_meetings(meetings, grace_s=max(grace_s, MEETING_S), now_s=at_s)

    removals = planned(time.time() if now_s is None else now_s())
    if removals and now_s is None and not dry_run:
        removals = planned(storage_clock.earlier_s(root, stores))
    by_name = {checkpoint.name: checkpoint for checkpoint in found}
    roots = _roots(root, also)
    for removal in () if dry_run else removals:
        if removal.leftover is not None and not removal.leftover.path:
            remove_meeting_of(root, removal.name, stores)
        elif removal.leftover is not None:
            _remove_leftover(address.join(roots[removal.leftover.target], removal.name), removal.leftover.path, stores)
        else:
            _remove_checkpoint(by_name[removal.name], roots, stores)
    return removals


def keep_newest(
    root: str, rule: KeepNewest, *, goes_on: Callable[[], bool] = lambda: True, stores: StoreOpener = open_store
) -> list[CheckpointRemoval]:
    """Remove older checkpoints that `robust_run.checkpoint` wrote; return what was removed. See `rules.keeping` for the rules.

    `goes_on`: asked before each: what is begun is finished, and nothing more is begun once it says no.

    Raises:
        TargetLost: The root cannot be listed, or something cannot be removed; what came before it is gone.
    """
    place = address.normal(root)
    found = list_checkpoints(place, stores=stores)
    by_name = {each.name: each for each in found}
    gone = []
    for removal in plan_of_rule(found, rule):
        if not goes_on():
            break
        _remove_checkpoint(by_name[removal.name], [place], stores)
        gone.append(removal)
    return gone


def _roots(root: str, also: Sequence[str]) -> list[str]:
    return [address.normal(place) for place in (root, *also)]


def _folders(root: str, stores: StoreOpener) -> list[Entry]:
    """Return the folders in a root, links to folders included; none if it is not there."""
    try:
        with closing(stores(root)) as store:
            return [entry for entry in store.list() if entry.is_folder]
    except NotFound:
        return []
    except StoreError as error:
        raise TargetLost(paths.shown(root), error.what) from error


def _look_at(
    name: str, roots: Sequence[str], stores: StoreOpener, presence: Presence, *, is_link: bool
) -> RootEntry | None:
    """Return what lies under a name; None if nothing of it is ours, or it is closed to us (as `lost+found` is)."""
    where = address.Address(address.join(roots[0], name), tuple(roots[1:]))
    url = paths.shown(where.url)
    try:
        with closing(stores(where.url)) as store:
            manifest = find_manifest(where, store, stores)
    except NotACheckpoint as error:
        left = () if is_link else _leftovers(where, None, stores)
        return RootEntry(name, url, "unfinished", reason=error.reason, leftovers=left) if left else None
    except ManifestRefused as error:
        return RootEntry(name, url, "damaged manifest", reason=error.reason, is_link=is_link)
    except TargetLost as error:
        if isinstance(error.__cause__, AccessDenied):
            return None
        raise
    if manifest.is_copy:
        reason = "the primary has none that is valid, another target has a copy"
        return RootEntry(name, url, "damaged manifest", reason=reason, is_link=is_link)
    fault = presence.fault(where, manifest.manifest)
    left = () if fault or is_link else _leftovers(where, manifest.manifest.uuid, stores)
    return _described(name, url, manifest, fault, left, is_link=is_link)


def _described(
    name: str, url: str, manifest: FoundManifest, fault: str | None, left: tuple[Leftover, ...], *, is_link: bool
) -> RootEntry:
    content = manifest.manifest
    state: State = "damaged parts" if fault is not None else "valid"
    if state == "valid" and is_temporary(name):
        state, fault = "temporary", "its name says that it is not finished: no checkpoint until it is renamed"
    return RootEntry(
        name,
        url,
        state,
        step=content.step,
        created_s=content.created_s,
        size_bytes=size_bytes(content),
        uuid=content.uuid,
        reason=fault or "",
        leftovers=left,
        is_link=is_link,
        written_by=content.facts.get(WRITTEN_BY, ""),
        mark=content.facts.get(MARK, ""),
    )


def _leftovers(where: address.Address, uuid: str | None, stores: StoreOpener) -> tuple[Leftover, ...]:
    """Return what lies under a name, on all targets, of saves other than the one that its manifest is of."""
    found = []
    for target, folder in enumerate(where.folders):
        try:
            with closing(stores(folder)) as store:
                for entry in store.list():
                    match = OURS.fullmatch(entry.name)
                    if match and match[1] != uuid and not entry.is_link:
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
    refuse_link(url)
    try:
        with closing(stores(url)) as store:
            store.remove(path)
        remove_if_empty(url, stores)
    except StoreError as error:
        raise TargetLost(paths.shown(url), error.what) from error


def _remove_checkpoint(found: RootEntry, roots: Sequence[str], stores: StoreOpener) -> None:
    """Copies first, then the manifest, then the parts: what a reader sees meanwhile is whole, or is no checkpoint."""
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
            remove_if_empty(folder, stores)
