"""Looks at a folder of checkpoints that is a URL: as `newest.look` does at one of this machine, and with the same words.

Far away each file costs a round trip. So manifests that were read before are known by their first line, which has their digest;
and of many checkpoints those are read whose names say the highest steps: a folder of thousands is not read at each start.

**What cannot be read now is not passed over.** A store that does not answer, or answers with an error that may pass, is a
trouble of the whole look: only what the store says is not there, or not whole, counts as that.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import msgspec

from robust_run.ckpt_io import address
from robust_run.ckpt_io.briefly import HEAD_BYTES, Brief, decoded
from robust_run.ckpt_io.errors import CheckpointError, ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.finding import StoreOpener, read_manifest
from robust_run.ckpt_io.newest import MOST_SEEN, WHOLE_ONES, WRITTEN_BY
from robust_run.ckpt_io.presence import wrong_part
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, FileLayout
from robust_run.ckpt_io.seen import FolderLook, SeenCheckpoint, is_temporary
from robust_run.ckpt_io.targets import folder_of
from robust_run.errors import RobustRunError, UserError
from robust_run.store import paths
from robust_run.store.errors import AccessDenied, NotFound, ShortRead, StoreError, is_transient
from robust_run.store.opening import open_store
from robust_run.store.types import Store

#: So many manifests are read in one look, at least; and requests at once.
MOST_READ, _THREADS = 64, 16
_FACT_CHARACTERS = 200
#: The first line of a manifest is no shorter.
_MARK_BYTES = 40

KnownFar = dict[str, tuple[bytes, SeenCheckpoint]]
"""Manifests that were read before, by name: how their file begins, and what they said."""
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class _TroubleError(Exception):
    """Nothing can be said of the folder now."""

    def __init__(self, error: RobustRunError) -> None:
        super().__init__(str(error))
        cause = error.__cause__ if isinstance(error, TargetLost) and error.__cause__ is not None else error
        self.may_pass = is_transient(cause)


def look_far(
    url: str,
    *,
    names: Collection[str] = (),
    avoid: Collection[str] = (),
    untrusted: Collection[str] = (),
    most: int = MOST_SEEN,
    whole: int = WHOLE_ONES,
    known: KnownFar | None = None,
    stores: StoreOpener = open_store,
) -> FolderLook:
    """Return what is seen of the checkpoints in a folder; see `newest.look`. Never raises."""
    known = {} if known is None else known
    try:
        with closing(stores(url)) as store:
            listed = [name for name in folders_of(store) if not is_temporary(name)]
        return _look(url, listed, names, avoid, untrusted, most, whole, known, stores)
    except _TroubleError as trouble:
        return FolderLook(trouble=f"it cannot be looked at: {trouble}", may_pass=trouble.may_pass)
    except NotFound as error:
        if paths.scheme_of(url) in ("http", "https"):  # no attempt can save there: it is a slip, or not there yet
            return FolderLook(trouble=f"{error}: nothing can be saved there either; mend the URL", may_pass=False)
        return FolderLook()
    except RobustRunError as error:
        return FolderLook(trouble=f"it cannot be listed: {error}", may_pass=is_transient(error))
    except Exception as error:  # a library of a store: what it raises is not known, and is no empty folder
        return FolderLook(trouble=f"{paths.shown(url)} cannot be listed: {type(error).__name__}: {error}")


def folders_of(store: Store) -> list[str]:
    """Return the names of folders in a store. Raises StoreError."""
    from robust_run.store.http import HttpStore

    if isinstance(store, HttpStore):
        return [*store.folders()]
    return [entry.name for entry in store.list() if entry.is_folder]


def to_read(listed: Iterable[str], names: Collection[str], most: int) -> tuple[list[str], int]:
    """Return the names whose manifests are read, and how many are left out. Pure.

    What says no step may be of any: it is read as well. `names` are read whether they are listed or not.
    """
    steps = {name: _step(name) for name in dict.fromkeys(listed) if name not in names}
    ordered = sorted(steps, key=lambda name: (steps[name] is None, steps[name] or 0, name), reverse=True)
    return [*sorted({*names}), *ordered[:most]], max(0, len(ordered) - most)


def _step(name: str) -> int | None:
    try:
        return address.step_of(f"/x/{name}")
    except UserError:
        return None


def _look(  # noqa: PLR0913, PLR0917 - what `look_far` was given
    url: str,
    listed: list[str],
    names: Collection[str],
    avoid: Collection[str],
    untrusted: Collection[str],
    most: int,
    whole: int,
    known: KnownFar,
    stores: StoreOpener,
) -> FolderLook:
    reads, unread = to_read(listed, [name for name in names if paths.is_clean(name)], max(MOST_READ, most))
    found = _at_once(lambda name: _manifest(url, name, known, stores), reads)
    there = [each for each in found if each is not None]
    seen = sorted(there, key=lambda each: (bool(each.uuid), each.written_by not in untrusted, each.age), reverse=True)
    others = [each for each in seen if each.uuid not in avoid and each.name not in names]
    left_out = {each.name for each in others[most:]}
    told: list[SeenCheckpoint] = []
    for each in seen:
        if each.name in left_out:
            continue
        if each.fault is None and each.uuid not in avoid and (whole > 0 or each.name in names):
            fault = parts_fault(paths.child(url, each.name), each.uuid, stores)
            told.append(msgspec.structs.replace(each, fault=fault))
            whole -= not fault
        else:
            told.append(each)
    return FolderLook(seen=tuple(told), left_out=len(left_out) + unread)


def _manifest(url: str, name: str, known: KnownFar, stores: StoreOpener) -> SeenCheckpoint | None:
    """Return what a folder's manifest says of its age; None: there is none of ours. Raises _TroubleError."""
    folder = paths.child(url, name)
    try:
        with closing(stores(folder)) as store:
            before = known.get(name)
            if before is not None and before[0] == _begins(store):
                return before[1]
            data = read_manifest(store, folder).data
    except NotACheckpoint:
        return None
    except ManifestRefused:
        return SeenCheckpoint(name=name, fault="its manifest is damaged")
    except NotFound:
        return None
    except (StoreError, CheckpointError) as error:
        if AccessDenied in (type(error), type(error.__cause__)):
            return _forbidden(name)
        raise _TroubleError(error) from error
    file = io.BytesIO(data)
    brief = decoded(file.readline(HEAD_BYTES), file, Brief)
    if brief is None:
        return SeenCheckpoint(name=name, fault="its manifest is damaged")
    seen = SeenCheckpoint(
        name=name,
        uuid=brief.uuid,
        step=brief.step,
        created_s=brief.created_s,
        written_by=brief.facts.get(WRITTEN_BY, "")[:_FACT_CHARACTERS],
    )
    known[name] = (data[:_MARK_BYTES], seen)
    return seen


def _forbidden(name: str) -> SeenCheckpoint | None:
    """Return what is said of a folder that may not be read; None: it is not named as a checkpoint is, and may be anybody's.

    Starting from an older one instead loses training, also if it is refused for a moment only: it is passed over by name.
    """
    return (
        None if _step(name) is None else SeenCheckpoint(name=name, fault="its manifest may not be read: access denied")
    )


def _begins(store: Store) -> bytes:
    """Return how a manifest begins, which names its digest; empty: it is too short. Raises StoreError."""
    mark = bytearray(_MARK_BYTES)
    try:
        store.read_into(MANIFEST_PATH, 0, [memoryview(mark)])
    except ShortRead:
        return b""
    return bytes(mark)


def parts_fault(folder: str, uuid: str, stores: StoreOpener = open_store) -> str:
    """Return what is wrong with the parts of a checkpoint, as far as its targets tell now; empty: nothing is."""
    where = address.Address(folder)
    try:
        with closing(stores(folder)) as store:
            manifest = read_manifest(store, folder).manifest
    except (ManifestRefused, NotACheckpoint):
        return "its manifest is damaged"
    except (StoreError, CheckpointError):
        return ""
    if manifest.uuid != uuid:
        return "it was saved anew meanwhile"
    layouts = manifests.layouts(manifest)
    for target in range(len(manifest.targets)):
        try:
            place, _ = folder_of(target, where, manifest)
            with closing(stores(place)) as store:
                wrong = _wrong_part(manifest.uuid, layouts, target, store)
        except RobustRunError:  # it does not tell now: reading does
            continue
        if wrong:
            return f"{wrong} on {paths.shown(place)}"
    return ""


def _wrong_part(uuid: str, layouts: Sequence[FileLayout], target: int, store: Store) -> str:
    from robust_run.store.http import HttpStore

    if not isinstance(store, HttpStore):
        return wrong_part(uuid, layouts, target, store) or ""
    expected = {layout.part_path(target): layout.part_bytes(target) for layout in layouts}
    asked = [path for path, size in expected.items() if size]
    found = _at_once(lambda path: _size_bytes(store, path), asked)
    for path, size in zip(asked, found, strict=True):
        if size is None:
            return f"part {path} is missing"
        if size != expected[path]:
            return f"part {path} has {size} bytes instead of {expected[path]}"
    return ""


def _size_bytes(store: Store, path: str) -> int | None:
    try:
        return store.size_bytes(path)
    except NotFound:
        return None


def _at_once(call: Callable[[_In], _Out], many: Sequence[_In]) -> list[_Out]:
    """Return what a call returns of each, in their order; the first error is raised when all are over."""
    if len(many) <= 1:
        return [call(each) for each in many]
    with ThreadPoolExecutor(min(_THREADS, len(many)), thread_name_prefix="look") as pool:
        return list(pool.map(call, many))
