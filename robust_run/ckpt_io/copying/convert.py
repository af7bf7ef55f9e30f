"""Conversion of a checkpoint of any kind to one of ours: striped, encoded and verified anew."""

from __future__ import annotations

from collections import Counter

import msgspec

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.copying.from_dcp import of_dcp
from robust_run.ckpt_io.copying.occupied import check_apart
from robust_run.ckpt_io.copying.sources import PlainFile, PlainSource, read_range
from robust_run.ckpt_io.copying.streams import of_view
from robust_run.ckpt_io.copying.taking import UNCHANGED, Wishes, taken_over, written
from robust_run.ckpt_io.copying.types import Kind, Progress
from robust_run.ckpt_io.copying.whole import check_whole, linked_files
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.safetensors_file import read_tensors
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.rules.boxes import BYTES_OF, box_bytes
from robust_run.ckpt_io.rules.types import Manifest, Tensor
from robust_run.ckpt_io.saving import SavePlan, abandon, begin_save, commit, open_file
from robust_run.ckpt_io.views.types import whole_file


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    kind: Kind
    """Of the source."""
    destination: str
    size_bytes: int
    files: int
    tensors: int
    objects: int = 0
    step: int | None = None
    notes: tuple[str, ...] = ()
    """What could not be taken over."""


def convert(source: Checkpoint | PlainSource, where: Address, wishes: Wishes, progress: Progress) -> Converted:
    """Save a checkpoint of ours with the content of another.

    Raises:
        UserError: The destination lies in the source.
        CheckpointError, StoreError: The source is cut off, not all there, changes, or cannot be read. Nothing is committed, and
            what lies at the destination stays as it is.
    """
    if isinstance(source, PlainSource):
        check_whole(source, "convert", "converted")
        check_apart(where.url, source.local_folder)
    item_bytes = _width(source)
    plan = begin_save(where, unit_bytes=wishes.unit_bytes, codec=wishes.codec, item_bytes=item_bytes)
    notes = list(source.tree.notes) if isinstance(source, PlainSource) else []
    try:
        if isinstance(source, Checkpoint):
            manifest, kind = _of_ours(source, plan, wishes, progress), "rrck"
        elif source.dcp is not None:
            manifest, kind = of_dcp(source, source.dcp, plan, wishes, progress, notes), source.kind
        else:
            manifest, kind = _of_files(source, plan, wishes, progress, notes), source.kind
    except BaseException:
        abandon(plan)
        raise
    return Converted(
        kind=kind,  # type: ignore[arg-type]
        destination=where.url,
        size_bytes=sum(file.size_bytes for file in manifest.files),
        files=len(manifest.files),
        tensors=len(manifest.tensors),
        objects=len(manifest.blobs),
        step=manifest.step,
        notes=tuple(notes),
    )


def _of_ours(source: Checkpoint, plan: SavePlan, wishes: Wishes, progress: Progress) -> Manifest:
    old = source.manifest
    files = []
    for index, file in enumerate(old.files):
        stream = open_file(plan, index, file.name)
        files.append(written(stream, of_view(source, whole_file(index, file)), progress))
    return commit(
        plan,
        files,
        tensors=old.tensors,
        blobs=old.blobs,
        paths=old.paths,
        step=old.step if wishes.step is None else wishes.step,
        facts=old.facts,
    )


def _of_files(source: PlainSource, plan: SavePlan, wishes: Wishes, progress: Progress, notes: list[str]) -> Manifest:
    """Whole files, bit by bit; of safetensors files, the tensors can be loaded singly as well."""
    taken = source.files + linked_files(source.tree, notes)
    files = taken_over(source, taken, 0, plan, progress)
    tensors, names = list[Tensor](), Counter[str]()
    for index, file in enumerate(taken):
        if not file.path.endswith(".safetensors"):
            continue
        try:
            found = read_tensors(_reader(source, file), file.size_bytes, index)
        except CheckpointError as error:
            notes.append(f"{file.path}: {error}")
            continue
        names.update(tensor.name for tensor in found)
        tensors += found
    if any(count > 1 for count in names.values()):
        notes.append("several files have tensors of one name: they can only be loaded as files")
        tensors = []
    source.check_unchanged(UNCHANGED)
    return commit(plan, files, tensors=tensors, step=wishes.step, facts={"imported": "files"})


def _reader(source: PlainSource, file: PlainFile):  # type: ignore[no-untyped-def]
    return lambda offset, size: read_range(source, file, offset, size)


def _width(source: Checkpoint | PlainSource) -> int:
    """Return the width that most bytes have: what a codec that sorts bytes goes by."""
    tensors = source.manifest.tensors if isinstance(source, Checkpoint) else source.dcp.tensors if source.dcp else ()
    widths = Counter[int]()
    for tensor in tensors:
        widths[BYTES_OF[tensor.dtype]] += box_bytes(tensor.sizes, tensor.dtype)
    return widths.most_common(1)[0][0] if widths else 1
