"""One node's part in writing a generation: what it tells, what it writes, and on the node of rank 0 the manifest at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib import metadata

import msgspec

from robust_run.checkpoint.flush import parts
from robust_run.checkpoint.flush.choosing import plan_of
from robust_run.checkpoint.flush.exchange import Exchange
from robust_run.checkpoint.flush.plan import VALUES, Piece, RankFile, RankSaid, file_of, own_of, pieces_of, tensors_of
from robust_run.checkpoint.rules.encoding import encode
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory.flushing.words import FlushOrder, Generation, OfferedPart
from robust_run.ckpt_io.newest import WRITTEN_BY
from robust_run.ckpt_io.rules.keeping import KeepNewest, mark_of
from robust_run.ckpt_io.rules.layout import parts_folder
from robust_run.ckpt_io.rules.types import LogicalFile, SavePlan
from robust_run.ckpt_io.saving import FilePiece, abandon, commit, write_file
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store

#: Of a training that goes on beside it.
BESIDE_TRAINING_THREADS = 2


class NodeSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells of its ranks."""

    ranks: tuple[RankSaid, ...]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's file, as it was written."""

    file: RankFile
    logical: LogicalFile


class NodeWrote(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has written."""

    files: tuple[Written, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    size_bytes: int
    """Of what was written, by all nodes as far as this one knows."""
    keeping: KeepNewest | None = None
    """What rank 0 said of older checkpoints, on its node."""


def write(order: FlushOrder, generation: Generation, folder: str, progress: Callable[[int, int], None]) -> Outcome:
    """Write a generation to FOLDER/step-N; on return it is there, or (on other nodes than that of rank 0) will be.

    `progress`: so many bytes of so many are written.

    Raises:
        CheckpointError: A part is not what was saved, another node failed, or the storage did. Nothing became visible.
    """
    plan = plan_of(order.run_id, folder, generation)
    chosen = sorted(
        (each for each in order.parts if (each.attempt, each.step) == generation), key=lambda each: each.rank
    )
    with closing(open_store(plan.url)) as store:
        exchange = Exchange(store, parts_folder(plan.uuid), order.ranks, order.world_size, order.wait_s)
        return _write(order, plan, chosen, exchange, progress)


def _write(
    order: FlushOrder,
    plan: SavePlan,
    chosen: Sequence[OfferedPart],
    exchange: Exchange,
    progress: Callable[[int, int], None],
) -> Outcome:
    is_leader, generation = 0 in order.ranks, (chosen[0].attempt, chosen[0].step)
    try:
        exchange.begin()
        held = [parts.read(each, order.world_size) for each in chosen]
        wrote = _write_files(order, plan, held, exchange, progress)
        all_wrote = exchange.hear("done", NodeWrote, wrote) if is_leader else [wrote]
        if is_leader:
            _commit(order, plan, generation, all_wrote, held[0].values, exchange)
        size_bytes = sum(file.file.size_bytes for node in all_wrote for file in node.files)
        return Outcome(size_bytes=size_bytes, keeping=held[0].values.keeping if is_leader else None)
    except BaseException:
        with suppress(StoreError):
            exchange.tell("failed", {})
        if is_leader:
            abandon(plan)
        raise


def _write_files(
    order: FlushOrder,
    plan: SavePlan,
    held: Sequence[parts.HeldPart],
    exchange: Exchange,
    progress: Callable[[int, int], None],
) -> NodeWrote:
    mine = NodeSaid(ranks=tuple(each.said() for each in held))
    exchange.tell("said", mine)
    said = [rank for node in exchange.hear("said", NodeSaid, mine) for rank in node.ranks]
    if [each.rank for each in said] != list(range(order.world_size)):
        raise CheckpointError("nodes do not agree on whose ranks are whose")
    if len({each.stream for each in said}) > 1:
        raise CheckpointError("ranks saved to different folders")
    own = own_of(said)
    pieces = pieces_of(said, own)
    values = {
        each.rank: encode(msgspec.structs.replace(each.values, own=own[each.rank], keeping=None)) for each in held
    }
    files = {each.rank: file_of(each.rank, pieces[each.rank], len(values[each.rank])) for each in held}
    of_bytes, done_bytes, lock = sum(file.size_bytes for file in files.values()), 0, threading.Lock()

    def note(more_bytes: int) -> None:
        nonlocal done_bytes
        with lock:
            done_bytes += more_bytes
            exchange.sign(done_bytes)
            progress(done_bytes, of_bytes)

    written = []
    for each in held:
        file = files[each.rank]
        found = [
            FilePiece(piece.offset_bytes, _bytes_of(each, piece, values)) for piece in file.pieces if piece.size_bytes
        ]
        threads = None if order.is_last else BESIDE_TRAINING_THREADS
        logical = write_file(
            plan, each.rank, f"rank-{each.rank:05d}.bin", found, file.size_bytes, threads=threads, progress=note
        )
        written.append(Written(file=file, logical=logical))
    wrote = NodeWrote(files=tuple(written))
    exchange.tell("done", wrote)
    return wrote


def _bytes_of(held: parts.HeldPart, piece: Piece, values: Mapping[int, bytes]) -> memoryview:
    return memoryview(values[held.rank]) if piece.number == VALUES else held.bytes_of(piece.number)


def _commit(
    order: FlushOrder,
    plan: SavePlan,
    generation: Generation,
    wrote: Sequence[NodeWrote],
    first: Values,
    exchange: Exchange,
) -> None:
    written = sorted((each for node in wrote for each in node.files), key=lambda each: each.file.rank)
    tensors = tensors_of([each.file for each in written])
    exchange.forget()
    facts = {"world_size": str(order.world_size), "framework": f"torch {_torch()}"}
    if first.written_by:
        facts[WRITTEN_BY] = first.written_by
    if first.keeping is not None:
        facts |= mark_of(first.keeping)
    place = {"TORCHELASTIC_RESTART_COUNT": str(generation[0]), "RANK": str(min(order.ranks))}
    commit(
        plan,
        [each.logical for each in written],
        tensors=tensors,
        paths={each.name: (each.name,) for each in tensors},
        step=generation[1],
        facts=facts,
        env={**place, "ROBUST_RUN_DIR": order.run_dir} if order.run_dir else {},
    )


def _torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "(unknown)"
