"""Memory of more or fewer ranks than there are now: all their parts, read as one checkpoint of `ckpt_io` is.

So what is loaded is what `storage.load` would have loaded of that step: each rank takes the boxes that it needs of sharded
tensors, of others what any rank had, and of what was each rank's own that of the rank with its number, else of rank 0.

All parts are in the memory of this node, where its ranks share in verifying them; what a part says of itself is held against what
the other nodes found it to say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.checkpoint import together
from robust_run.checkpoint.fitting import Fitting
from robust_run.checkpoint.flush.parts import HeldPart
from robust_run.checkpoint.flush.plan import RankSaid, own_of, pieces_of
from robust_run.checkpoint.rules.encoding import decode
from robust_run.checkpoint.rules.settings import Generation
from robust_run.checkpoint.types import Values, stored_name
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory import segment
from robust_run.ckpt_io.memory.client import HeldPart as FetchedPart
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.ckpt_io.memory.types import generation_address, generation_uuid
from robust_run.ckpt_io.reading import Wanted
from robust_run.ckpt_io.rules.types import Chunk, LogicalFile, Manifest, Tensor

if TYPE_CHECKING:
    from robust_run.ckpt_io.dcp.reader import RobustReader


class PartSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A part, as a rank has verified it."""

    digest: str
    said: RankSaid


class PartsInMemory:
    """All parts of a generation, as an open checkpoint: each is a logical file."""

    def __init__(self, manifest: Manifest, url: str, parts: Sequence[HeldPart]) -> None:
        self.manifest, self.url = manifest, url
        self._views = [part.view for part in parts]

    def read(self, wanted: Sequence[Wanted], progress: Callable[[int], None] | None = None) -> None:
        """Copy what is wanted."""
        for each in wanted:
            if each.buffer.nbytes:
                into = each.buffer.cast("B")
                into[:] = self._views[each.file][each.offset_bytes : each.offset_bytes + len(into)]
                if progress is not None:
                    progress(len(into))

    def close(self) -> None:
        """Let go of the parts; they are given back by who fetched them."""
        self._views = []


@dataclass
class Spread:
    """A generation of another world, open."""

    values: Values
    """All but the tensors, as this rank is to have it."""
    reader: RobustReader
    """Of the tensors, under the names that storage has for them (`types.stored_name`)."""
    fetched: list[FetchedPart]
    parts: list[HeldPart]

    def close(self) -> None:
        """Give the parts back."""
        self.reader.close()
        _give_back(self.fetched, self.parts)


def load(client: MemoryClient, generation: Generation, state: dict[str, Any], stream: str | None) -> Values | None:
    """Load a generation of another world into the state; all ranks take part. None: it is of another stream than this one.

    Raises:
        CheckpointError: A part is not there, is not what was saved, or another rank has that trouble.
        UserError: It does not fit the state.
    """
    from robust_run.ckpt_io.dcp.helpers import load_by

    spread = opened(client, generation, stream)
    if spread is None:
        return None
    try:
        values = spread.values
        fitting = together.all_or_none(lambda: Fitting(values, state))
        load_by(spread.reader, {stored_name(values, number): tensor for number, tensor in fitting.targets.items()})
    finally:
        spread.close()
    together.all_or_none(fitting.settle)  # no rank goes on, and wants memory to save in, while another one reads
    return values


def opened(client: MemoryClient, generation: Generation, stream: str | None) -> Spread | None:
    """Have all parts here, verified; all ranks take part. None: they are of another stream than this one.

    Raises:
        CheckpointError: A part is not there, is not what was saved, or another rank has that trouble.
    """
    fetched: list[FetchedPart] = []
    parts: list[HeldPart] = []
    try:
        together.all_or_none(lambda: _fetch_all(client, generation, fetched))
        parts += together.all_or_none(lambda: [_opened(each, rank, generation) for rank, each in enumerate(fetched)])
        seen = _agreed(together.said_by_all(together.all_or_none(lambda: _verified(fetched, parts))), generation)
        is_another = stream is not None and parts[0].values.stream != stream
        if together.any_say_yes(is_another)[0]:
            _give_back(fetched, parts)
            return None
        return together.all_or_none(lambda: _spread(fetched, parts, [each.said for each in seen], generation))
    except BaseException:
        _give_back(fetched, parts)
        raise


def _spread(fetched: list[FetchedPart], parts: list[HeldPart], said: list[RankSaid], generation: Generation) -> Spread:
    from robust_run.ckpt_io.dcp.reader import RobustReader

    own = _own(said)
    rank, _ = together.rank_and_size()
    values = parts[rank if rank < len(parts) else 0].values
    values = msgspec.structs.replace(values, own=own[values.rank])
    manifest = manifest_of(parts, said, own, generation)
    url = generation_address(generation.attempt, generation.step, generation.saved_by)
    reader = RobustReader(url, opener=lambda *_, **__: PartsInMemory(manifest, url, parts))
    return Spread(values, reader, fetched, parts)


def _give_back(fetched: list[FetchedPart], parts: list[HeldPart]) -> None:
    parts.clear()
    for each in fetched:
        with suppress(BufferError):  # of an error that still holds what was read
            each.close()
    fetched.clear()


def _fetch_all(client: MemoryClient, generation: Generation, fetched: list[FetchedPart]) -> None:
    for rank in range(generation.saved_by):
        part = client.fetch(generation.attempt, generation.step, rank)
        if part is None:
            raise CheckpointError(
                f"the memory keeper holds no part of rank {rank} of {generation.saved_by} of attempt {generation.attempt}, "
                f"step {generation.step}"
            )
        fetched.append(part)


def _opened(fetched: FetchedPart, rank: int, generation: Generation) -> HeldPart:
    """Read what a part says of itself. Its bytes are verified by a rank of this node (`_verified`)."""
    where = f"the part of rank {rank}, step {generation.step}, in memory"
    index = segment.read(fetched.view, fetched.used_bytes)
    values = decode(index.values, where)
    if (values.rank, values.world_size, values.step) != (rank, generation.saved_by, generation.step):
        raise CheckpointError(f"{where} is of rank {values.rank} of {values.world_size}, step {values.step}")
    said = [(entry.name, entry.dtype, tuple(entry.shape)) for entry in index.tensors]
    if said != [(each.name, each.dtype, each.local_shape) for each in values.tensors]:
        raise CheckpointError(f"{where} contradicts itself")
    return HeldPart(rank=rank, values=values, index=index, view=fetched.view)


def _verified(fetched: Sequence[FetchedPart], parts: Sequence[HeldPart]) -> dict[int, PartSeen]:
    """Verify those parts on this node that are this rank's to verify."""
    of, at = _node_place(os.environ)
    found: dict[int, PartSeen] = {}
    for part in parts[at::of]:
        held = fetched[part.rank]
        segment.read(held.view, held.used_bytes, held.digest)
        found[part.rank] = PartSeen(digest=held.digest.hex(), said=part.said())
    return found


def _node_place(env: Mapping[str, str]) -> tuple[int, int]:
    """Return how many ranks of this node share the work, and which of them this is; where that is not said, each does all."""
    of, at = env.get("LOCAL_WORLD_SIZE", ""), env.get("LOCAL_RANK", "")
    if of.isdecimal() and at.isdecimal() and int(at) < int(of):
        return int(of), int(at)
    return 1, 0


def _agreed(said: Sequence[dict[int, PartSeen]], generation: Generation) -> list[PartSeen]:
    """Return what each part is, as all who verified it found. Raises CheckpointError: nodes have different ones."""
    found: dict[int, PartSeen] = {}
    for each in said:
        for rank, seen in each.items():
            if found.setdefault(rank, seen).digest != seen.digest:
                raise CheckpointError(f"nodes hold different parts of rank {rank}, step {generation.step}")
    if missing := [rank for rank in range(generation.saved_by) if rank not in found]:
        raise CheckpointError(f"no rank verified the part of rank {missing[0]}, step {generation.step}")
    return [found[rank] for rank in range(generation.saved_by)]


def _own(said: Sequence[RankSaid]) -> dict[int, tuple[int, ...]]:
    if len({each.stream for each in said}) > 1:
        raise CheckpointError("ranks saved to different folders")
    return own_of(said)


def manifest_of(
    parts: Sequence[HeldPart], said: Sequence[RankSaid], own: Mapping[int, tuple[int, ...]], generation: Generation
) -> Manifest:
    """Return what the parts are as a checkpoint: the boxes that each rank would have written, where they lie in its part.

    Raises:
        CheckpointError: Ranks have one tensor with different shapes, or one does not say where its share belongs.
    """
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    chunks: dict[str, list[Chunk]] = {}
    for rank, pieces in pieces_of(said, own).items():
        for piece in pieces:
            kinds[piece.name] = piece.dtype, piece.shape
            found = chunks.setdefault(piece.name, [])
            if piece.size_bytes:
                offset_bytes = parts[rank].index.tensors[piece.number].offset
                found.append(Chunk(offsets=piece.offsets, sizes=piece.sizes, file=rank, offset_bytes=offset_bytes))
    return Manifest(
        uuid=generation_uuid(os.environ.get("ROBUST_JOB", ""), generation.attempt, generation.step),
        created_s=0.0,
        step=generation.step,
        files=tuple(LogicalFile(name=f"rank-{each.rank:05d}", size_bytes=len(each.view)) for each in parts),
        tensors=tuple(
            Tensor(name=name, dtype=dtype, sizes=shape, chunks=tuple(chunks[name]))
            for name, (dtype, shape) in kinds.items()
        ),
    )
