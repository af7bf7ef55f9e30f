"""What a restore copies where to: units of ours dealt anew, or files as they are (`plain_plans`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import msgspec

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.copying.comparing import compare_ours
from robust_run.ckpt_io.copying.occupied import check_free, local_parts
from robust_run.ckpt_io.copying.plain_plans import journal_path, plan_of_plain
from robust_run.ckpt_io.copying.sources import PlainSource
from robust_run.ckpt_io.copying.types import CopyPlan, Task
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.ckpt_io.saving import SavePlan, commit
from robust_run.errors import UserError
from robust_run.store import paths
from robust_run.store.opening import local_path


def plan_of(source: Checkpoint | PlainSource, destination: Address) -> CopyPlan:
    """Return what is to be copied and where to. Pure but for asking what the destination is."""
    folders = []
    for folder in destination.folders:
        if paths.scheme_of(folder) not in ("", "file"):
            raise UserError(
                f"{folder}: restore brings checkpoints to this machine; to copy elsewhere use robust ckpt convert"
            )
        folders.append(local_path(folder))
    if isinstance(source, Checkpoint):
        return _plan_of_ours(source, destination, folders)
    if len(folders) > 1:
        raise UserError("--also: only checkpoints of ours are striped; robust ckpt convert makes one of anything")
    return plan_of_plain(source, folders[0])


def _plan_of_ours(source: Checkpoint, destination: Address, folders: Sequence[str]) -> CopyPlan:
    """The parts are dealt anew over the targets here; the units are the same, and so are their digests."""
    manifest = source.manifest
    files = tuple(
        msgspec.structs.replace(file, first_target=index % len(folders)) for index, file in enumerate(manifest.files)
    )
    here = msgspec.structs.replace(manifest, files=files, targets=(".", *folders[1:]))
    layouts = manifests.layouts(here)

    def path_of(index: int, target: int) -> str:
        return os.path.join(folders[target], layouts[index].part_path(target))

    def tasks() -> Iterator[Task]:
        for index, layout in enumerate(layouts):
            for unit in range(layout.units):
                place = layout.place(unit)
                path = path_of(index, place.target)
                fetch = _stored(source, index, unit)
                yield Task(index, unit, path, place.offset_bytes, place.stored_bytes, layout.digest(unit), fetch)

    sizes = {
        path_of(index, target): layout.part_bytes(target)
        for index, layout in enumerate(layouts)
        for target in range(len(folders))
        if layout.part_bytes(target)
    }
    identity = f"rrck {manifest.uuid} {manifests.size_bytes(manifest)} {' '.join(folders)}"
    return CopyPlan(
        kind="rrck",
        source=source.url,
        destination=folders[0],
        identity=identity,
        journal_path=journal_path(folders[0]),
        tasks=tasks,
        sizes=sizes,
        finish=lambda: _commit(here, destination),
        compare=lambda: compare_ours(here, folders, sizes),
        threads=source.targets.threads,
        roots=tuple(folders),
        source_paths=local_parts(source),
        is_occupied=lambda: check_free(here, folders),
    )


def _stored(source: Checkpoint, index: int, unit: int) -> Callable[[], bytes]:
    return lambda: source.read_unit(index, unit)


def _commit(manifest: Manifest, destination: Address) -> None:
    plan = SavePlan(url=destination.url, also=destination.also, uuid=manifest.uuid)
    commit(
        plan,
        manifest.files,
        tensors=manifest.tensors,
        blobs=manifest.blobs,
        paths=manifest.paths,
        step=manifest.step,
        facts=manifest.facts,
        now_s=lambda: manifest.created_s,
    )
