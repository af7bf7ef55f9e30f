"""What a restore copies where to: units of ours dealt anew, or files as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import msgspec

from robust_run.ckpt_io import manifest as manifests
from robust_run.ckpt_io.address import Address, split
from robust_run.ckpt_io.copying.journal import SUFFIX, Journal
from robust_run.ckpt_io.copying.local_files import read_bytes, sync_path
from robust_run.ckpt_io.copying.occupied import check_free, local_parts
from robust_run.ckpt_io.copying.sources import PlainSource
from robust_run.ckpt_io.copying.types import Plan, Task
from robust_run.ckpt_io.foreign.dcp_folder import METADATA_PATH
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.saving import SavePlan, commit
from robust_run.ckpt_io.types import UNIT_BYTES, Manifest
from robust_run.errors import UserError
from robust_run.store import paths
from robust_run.store.opening import local_path

#: Of what was fetched, so much is fetched again to see that the source is still the same.
_SAMPLE_BYTES = 64 << 10


def plan_of(source: Checkpoint | PlainSource, destination: Address) -> Plan:
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
    return _plan_of_plain(source, folders[0])


def _plan_of_ours(source: Checkpoint, destination: Address, folders: Sequence[str]) -> Plan:
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
    return Plan(
        kind="rrck",
        source=source.url,
        destination=folders[0],
        identity=identity,
        journal_path=_journal_path(folders[0]),
        tasks=tasks,
        sizes=sizes,
        finish=lambda: _commit(here, destination),
        is_same=lambda journal: True,  # noqa: ARG005 - the digests of the manifest decide
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


def _plan_of_plain(source: PlainSource, destination: str) -> Plan:
    """Files keep names of their own until all of them are whole."""
    final_of = {}
    for file in source.files:
        final = os.path.join(destination, file.path) if source.kind != "file" else _file_path(destination, file.path)
        final_of[os.path.join(os.path.dirname(final), f".{os.path.basename(final)}.restoring")] = final
    temporary = list(final_of)

    def tasks() -> Iterator[Task]:
        for index, (file, path) in enumerate(zip(source.files, temporary, strict=True)):
            for unit, at in enumerate(range(0, file.size_bytes, UNIT_BYTES)):
                size = min(UNIT_BYTES, file.size_bytes - at)
                yield Task(index, unit, path, at, size, None, _ranged(source, file.path, at, size))

    def is_same(journal: Journal) -> bool:
        """A sample of what was fetched is fetched again: same names and sizes can hold something else by now."""
        index, unit = next(iter(journal.done))
        file, at = source.files[index], unit * UNIT_BYTES
        size = min(_SAMPLE_BYTES, file.size_bytes - at)
        local = read_bytes(temporary[index], at, size)
        return local is not None and bytes(_ranged(source, file.path, at, size)()) == local

    def finish() -> None:
        for path, final in final_of.items():  # the metadata of a DCP folder, its commit record, is the last
            os.replace(path, final)
        for folder in {os.path.dirname(final) for final in final_of.values()}:
            sync_path(folder)

    shown = destination if source.kind != "file" else next(iter(final_of.values()))
    return Plan(
        kind=source.kind,
        source=paths.shown(source.url),
        destination=shown,
        identity=source.identity,
        journal_path=_journal_path(shown),
        tasks=tasks,
        sizes={path: file.size_bytes for path, file in zip(temporary, source.files, strict=True)},
        finish=finish,
        is_same=is_same,
        threads=source.store.threads,
        commit_record=os.path.join(destination, METADATA_PATH) if source.kind == "dcp" else "",
        final_of=final_of,
        roots=(destination,),
        source_paths=_local_files(source),
    )


def _local_files(source: PlainSource) -> tuple[str, ...]:
    if paths.scheme_of(source.store.url) not in ("", "file"):
        return ()
    return tuple(local_path(paths.child(source.store.url, file.path)) for file in source.files)


def _ranged(source: PlainSource, path: str, at: int, size: int) -> Callable[[], bytearray]:
    def fetch() -> bytearray:
        buffer = bytearray(size)
        source.store.read_into(path, at, [memoryview(buffer)])
        return buffer

    return fetch


def _file_path(destination: str, name: str) -> str:
    return os.path.join(destination, name) if os.path.isdir(destination) else destination


def _journal_path(destination: str) -> str:
    root, name = split(destination)
    return os.path.join(root, f".{name}{SUFFIX}")
