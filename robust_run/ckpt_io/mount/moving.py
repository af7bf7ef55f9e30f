"""A checkpoint of one file gets another name: saved there from links to its parts, or from a copy where there are no links.

It is there under its old name until it is there under the new one, also after a crash. So do parts that no manifest names
yet, of a file that is kept aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress

import msgspec

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.errors import TargetLost
from robust_run.ckpt_io.finding import read_manifest
from robust_run.ckpt_io.mount.saving_file import Saving, copy
from robust_run.ckpt_io.mount.wholeness import uncommitted
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.removing import remove_if_empty, remove_save
from robust_run.ckpt_io.rules.layout import FileLayout
from robust_run.ckpt_io.rules.types import LogicalFile
from robust_run.ckpt_io.saving import SavePlan, abandon, begin_save, commit, open_file
from robust_run.store.errors import StoreError
from robust_run.store.local_writing import sync_folder
from robust_run.store.opening import local_path
from robust_run.store.types import Store


def move(source: Checkpoint, old: Address, new: Address, saving: Saving, stores: Callable[[str], Store]) -> None:
    """Commit a checkpoint's file under a new name, then remove it under the old one. Raises CheckpointError, StoreError."""
    _save_as(source, new, saving)
    remove(old, stores)


def keep(plan: SavePlan, file: LogicalFile, new: Address, saving: Saving, stores: Callable[[str], Store]) -> None:
    """Commit what a save wrote, and did not commit, under another name. Raises CheckpointError, StoreError."""
    with closing(uncommitted(plan, file, stores)) as source:
        _save_as(source, new, saving)


def _save_as(source: Checkpoint, new: Address, saving: Saving) -> None:
    plan = begin_save(new.url, new.also, unit_bytes=saving.unit_bytes, codec=saving.codec, durable=True)
    try:
        file = _linked(source, plan, new) or _copied(source, plan, new)
        commit(plan, [file], tensors=source.manifest.tensors, step=source.manifest.step, facts=source.manifest.facts)
    except BaseException:
        abandon(plan)
        raise


def remove(address: Address, stores: Callable[[str], Store]) -> None:
    """Remove a checkpoint, so that there is no moment with half of it. Raises CheckpointError or StoreError."""
    with closing(stores(address.url)) as primary:
        found = read_manifest(primary, address.url)
        failed = remove_save(found, address, primary, stores, with_manifest=True)
    for folder in address.folders:
        with suppress(StoreError):
            remove_if_empty(folder, stores)
    if failed:
        raise TargetLost(address.url, f"not all of it could be removed: {failed[0]}")


def _linked(source: Checkpoint, plan: SavePlan, new: Address) -> LogicalFile | None:
    """Give the parts a second name in the new place; None where that cannot be."""
    manifest = source.manifest
    old_urls = [source.targets.url(index) for index in range(len(manifest.targets))]
    if len(old_urls) != len(new.folders):
        return None
    file = msgspec.structs.replace(manifest.files[0], name=new.name)
    old = FileLayout(manifest.uuid, 0, manifest.files[0], len(old_urls))
    fresh = FileLayout(plan.uuid, 0, file, len(old_urls))
    pairs = []
    for index, (old_url, new_url) in enumerate(zip(old_urls, new.folders, strict=True)):
        if not (_is_local(old_url) and _is_local(new_url)):
            return None
        if old.part_bytes(index):
            pairs.append(
                (
                    os.path.join(local_path(old_url), old.part_path(index)),
                    os.path.join(local_path(new_url), fresh.part_path(index)),
                )
            )
    try:
        for one, other in pairs:
            os.makedirs(os.path.dirname(other), exist_ok=True)
            os.link(one, other)
            sync_folder(os.path.dirname(other))
    except OSError:
        for _, other in pairs:
            if os.path.exists(other):
                os.unlink(other)
        return None
    return file


def _copied(source: Checkpoint, plan: SavePlan, new: Address) -> LogicalFile:
    stream = open_file(plan, 0, new.name)
    try:
        copy(source, stream)
        return stream.finish()
    except BaseException:
        stream.abort()
        raise


def _is_local(url: str) -> bool:
    from robust_run.store.paths import scheme_of

    return scheme_of(url) in ("", "file")
