"""Repairing a checkpoint from a second copy of the same content. The digests of the first decide what is the same.

A part that has a damaged unit is written anew, whole, and replaces the old one when it is durable; so a repair that dies leaves
the checkpoint no worse than it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from robust_run.ckpt_io.address import Address, parse
from robust_run.ckpt_io.errors import CheckpointError, Damaged, ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.finding import FoundManifest, StoreOpener, find_manifest
from robust_run.ckpt_io.reading import Checkpoint, open_checkpoint
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, FileLayout, copy_path, parts_folder
from robust_run.ckpt_io.targets import folder_of
from robust_run.ckpt_io.units import encode
from robust_run.store import paths
from robust_run.store.digests import digest
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store


@dataclass(frozen=True)
class Repaired:
    """What a repair did."""

    units: tuple[Damaged, ...]
    """Were damaged, and are no more."""
    manifests: tuple[str, ...]
    """Targets that got their manifest, or their copy of it, anew."""
    left: tuple[Damaged, ...]
    """Are damaged still: the second copy does not have them either."""


def repair(
    url: str | Address,
    from_url: str | Address,
    *,
    also: Sequence[str] = (),
    from_also: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
    stores: StoreOpener = open_store,
) -> Repaired:
    """Check a checkpoint and mend what is damaged or missing, manifest and copies of it included.

    The second copy may be cut into other units, lie on other targets or be encoded otherwise. Without a valid manifest or copy of
    it, the second one's is taken if it was of the same save.

    Raises:
        NotACheckpoint, ManifestRefused: Neither has a manifest that says what should be there.
        TargetLost: A target cannot be written to.
    """
    where = url if isinstance(url, Address) else parse(url, tuple(also))
    source_where = from_url if isinstance(from_url, Address) else parse(from_url, tuple(from_also))
    with open_checkpoint(source_where, stores=stores) as source:
        mended = _mend_manifests(where, source_where, stores)
        with open_checkpoint(where, stores=stores) as broken:
            return _mend_units(broken, source, mended, progress)


def _mend_manifests(where: Address, source_where: Address, stores: StoreOpener) -> tuple[str, ...]:
    """Write the manifest and its copies where they are missing or damaged; on targets that the caller named, nowhere else."""
    found = _manifest_of(where, source_where, stores)
    mended = []
    for target in range(len(found.manifest.targets)):
        folder, is_named = folder_of(target, where, found.manifest)
        path = copy_path(found.manifest.uuid) if target else MANIFEST_PATH
        with closing(stores(folder)) as store:
            with suppress(StoreError):
                if store.read_all(path, len(found.data)) == found.data:
                    continue
            if not is_named:
                reason = (
                    f"its {path} is missing or damaged; to have it written anew, name the target's root with 'also'"
                )
                raise TargetLost(paths.shown(folder), reason)
            try:
                store.write_all(path, found.data)
            except StoreError as error:
                raise TargetLost(paths.shown(folder), error.what) from error
        mended.append(paths.shown(folder))
    return tuple(mended)


def _manifest_of(where: Address, source_where: Address, stores: StoreOpener) -> FoundManifest:
    with closing(stores(where.url)) as primary:
        try:
            return find_manifest(where, primary, stores)
        except (NotACheckpoint, ManifestRefused):
            with closing(stores(source_where.url)) as other:
                found = find_manifest(source_where, other, stores)
            if not _has_parts(primary, found.manifest.uuid):
                raise
            return found


def _has_parts(primary: Store, uuid: str) -> bool:
    """Whether the primary has parts of a save: so that save's manifest is of what lies there."""
    try:
        return bool(primary.list(parts_folder(uuid)))
    except StoreError:
        return False


def _mend_units(
    broken: Checkpoint, source: Checkpoint, mended: tuple[str, ...], progress: Callable[[int], None] | None
) -> Repaired:
    damaged: defaultdict[tuple[int, int], dict[int, Damaged]] = defaultdict(dict)
    repaired, left = list[Damaged](), list[Damaged]()
    for fault in broken.check(progress):
        if fault.file:
            file, _ = broken.file(fault.file)
            damaged[file, broken.layouts[file].place(fault.unit).target][fault.unit] = fault
        else:
            left.append(fault)
    for (file, target), faults in damaged.items():
        is_whole = _write_part(broken, source, file, target, faults.keys())
        (repaired if is_whole else left).extend(faults.values())
    return Repaired(tuple(repaired), mended, tuple(left))


def _from(source: Checkpoint, layout: FileLayout, unit: int) -> bytes | None:
    """Return what should be stored of a unit, from the second copy; None if it does not have it."""
    wanted, file = layout.digest(unit), layout.file
    try:
        index, other = source.file(file.name)
        if (other.codec, other.unit_bytes) == (file.codec, file.unit_bytes) and source.layouts[index].digest(
            unit
        ) == wanted:
            return source.read_unit(index, unit)
        size = layout.place(unit).size_bytes
        plain = source.read_bytes(index, unit * file.unit_bytes, size)
    except (CheckpointError, ValueError, IndexError):
        return None
    if digest(plain) == wanted:
        return plain
    stored = b"".join(encode(file.codec, file.item_bytes, [plain]).buffers)
    return stored if digest(stored) == wanted else None


def _write_part(broken: Checkpoint, source: Checkpoint, file: int, target: int, damaged: Collection[int]) -> bool:
    """Write a part anew: what is good from the old one, verified once more, the rest from the second copy.

    Return whether all of it was found; if not, the old part stays.
    """
    layout, store = broken.layouts[file], broken.targets.store(target)
    try:
        writer = store.create(layout.part_path(target), layout.part_bytes(target))
        try:
            for unit in layout.units_on(target):
                stored = _from(source, layout, unit) if unit in damaged else broken.read_unit(file, unit)
                if stored is None:
                    return False
                writer.write_at(layout.place(unit).offset_bytes, [memoryview(stored)])
            writer.finish()
        finally:
            writer.abort()
    except StoreError as error:
        raise TargetLost(paths.shown(store.url), f"{error.path}: {error.what}") from error
    return True
