"""One node's part in writing a generation: what it tells, what it writes, and on the node of rank 0 the manifest at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib import metadata

import msgspec

from robust_run.checkpoint.encoding import encode
from robust_run.checkpoint.flush import parts
from robust_run.checkpoint.flush.exchange import Exchange
from robust_run.checkpoint.flush.plan import VALUES, Piece, RankFile, RankSaid, file_of, own_of, pieces_of, tensors_of
from robust_run.ckpt_io import address, catalog
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.finding import read_manifest
from robust_run.ckpt_io.memory.flush_words import FlushOrder, Generation, flush_uuid
from robust_run.ckpt_io.newest import WRITTEN_BY
from robust_run.ckpt_io.rules.layout import parts_folder
from robust_run.ckpt_io.rules.types import LogicalFile, SavePlan
from robust_run.ckpt_io.saving import FilePiece, abandon, begin_save, commit, write_file
from robust_run.errors import RobustRunError
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store

#: Of a training that goes on beside it.
BESIDE_TRAINING_THREADS = 2


class NodeSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells of its ranks."""

    ranks: tuple[RankSaid, ...]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node could write."""

    generations: tuple[Generation, ...]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's file, as it was written."""

    file: RankFile
    logical: LogicalFile


class NodeWrote(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has written."""

    files: tuple[Written, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    generation: Generation
    folder: str
    size_bytes: int = 0
    """0: it was there already."""


def choose(order: FlushOrder, store: Store, folder: str) -> Generation:
    """Return the newest generation that all nodes have. Raises CheckpointError, StoreError."""
    held = parts.generations(order.parts, order.ranks)
    if not held:
        raise CheckpointError("memory has no step of all ranks of this node")
    meeting = Exchange(store, folder, order.ranks, order.world_size, order.wait_s)
    if meeting.is_alone or not order.is_last:
        return held[0]
    mine = Offer(generations=tuple(held))
    meeting.tell("offer", mine)
    offers = meeting.hear("offer", Offer, mine)
    common = set(held).intersection(*(each.generations for each in offers))
    if not common:
        raise CheckpointError("memory has no step that all nodes have")
    return max(common)


def meeting_folder(run_id: str) -> str:
    """Return where nodes of a job that is over say what they have; hidden among the checkpoints of a folder."""
    return f".robust-run-{flush_uuid(run_id, -1, -1)}"


def plan_of(run_id: str, folder: str, generation: Generation) -> SavePlan:
    """Return the plan of a generation's save: the same on every node, and each time it is tried."""
    url = address.join(address.normal(folder), f"step-{generation[1]}")
    return msgspec.structs.replace(begin_save(url), uuid=flush_uuid(run_id, *generation))


def is_there(plan: SavePlan, step: int, created_s: float, *, or_newer: bool) -> bool:
    """Whether storage has it; with `or_newer`, or something that was made later, of this step or a later one."""
    with suppress(CheckpointError, StoreError), closing(open_store(plan.url)) as store:
        if read_manifest(store, plan.url).manifest.uuid == plan.uuid:
            return True
    if not or_newer:
        return False
    with suppress(RobustRunError):
        return any(
            found.state == "valid" and (found.step or 0) >= step and (found.created_s or 0.0) >= created_s
            for found in catalog.list_checkpoints(plan.where.root)
        )
    return False


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
    created_s = max(each.created_s for each in chosen)
    if is_there(plan, generation[1], created_s, or_newer=order.is_last):
        return Outcome(generation=generation, folder=folder)
    is_leader = 0 in order.ranks
    with closing(open_store(plan.url)) as store:
        exchange = Exchange(store, parts_folder(plan.uuid), order.ranks, order.world_size, order.wait_s)
        try:
            exchange.begin()
            held = [parts.read(each, order.world_size) for each in chosen]
            wrote = _write_files(order, plan, held, exchange, progress)
            all_wrote = exchange.hear("done", NodeWrote, wrote) if is_leader else [wrote]
            if is_leader:
                _commit(order, plan, generation, all_wrote, held[0].values.written_by, exchange)
            size_bytes = sum(file.file.size_bytes for node in all_wrote for file in node.files)
            return Outcome(generation=generation, folder=folder, size_bytes=max(1, size_bytes))
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
    values = {each.rank: encode(msgspec.structs.replace(each.values, own=own[each.rank])) for each in held}
    files = {each.rank: file_of(each.rank, pieces[each.rank], len(values[each.rank])) for each in held}
    of_bytes, done_bytes = sum(file.size_bytes for file in files.values()), 0

    def note(more_bytes: int) -> None:
        nonlocal done_bytes
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
    written_by: str,
    exchange: Exchange,
) -> None:
    written = sorted((each for node in wrote for each in node.files), key=lambda each: each.file.rank)
    tensors = tensors_of([each.file for each in written])
    exchange.forget()
    facts = {"world_size": str(order.world_size), "framework": f"torch {_torch()}"}
    if written_by:
        facts[WRITTEN_BY] = written_by
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
