"""Who writes what of a generation, as every node works it out by itself from what all ranks have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.checkpoint.types import SavedTensor, Values, stored_name, values_name
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.boxes import box_bytes
from robust_run.ckpt_io.rules.segments import lay_out
from robust_run.ckpt_io.rules.types import Chunk, Tensor

VALUES = -1


class RankSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has, but for the bytes: small enough to be handed round."""

    rank: int
    stream: str
    written_by: str = ""
    tensors: tuple[SavedTensor, ...]
    digests: tuple[str, ...]
    """Of the tensors that it has all of, in hexadecimal digits; empty: it has a share."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A box that a rank writes."""

    number: int
    """Of the tensor among the rank's; `VALUES`: what is no tensor."""
    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    offset_bytes: int = 0
    """In the rank's file."""

    @property
    def size_bytes(self) -> int:
        """As stored."""
        return box_bytes(self.sizes, self.dtype)


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank writes."""

    rank: int
    pieces: tuple[Piece, ...]
    size_bytes: int


def own_of(said: Sequence[RankSaid]) -> dict[int, tuple[int, ...]]:
    """Return of each rank which of its tensors other ranks have with other content (see `Values.own`)."""
    whole = {
        each.rank: [number for number, tensor in enumerate(each.tensors) if tensor.layout is None] for each in said
    }
    if len(said) == 1:
        return {said[0].rank: ()}
    first = [said[0].tensors[number] for number in whole[said[0].rank]]
    if any([each.tensors[number] for number in whole[each.rank]] != first for each in said):
        return {rank: tuple(numbers) for rank, numbers in whole.items()}
    found: dict[int, list[int]] = {each.rank: [] for each in said}
    for position in range(len(first)):
        numbers = [(each, whole[each.rank][position]) for each in said]
        if len({each.digests[number] for each, number in numbers}) > 1:
            for each, number in numbers:
                found[each.rank].append(number)
    return {rank: tuple(numbers) for rank, numbers in found.items()}


def pieces_of(said: Sequence[RankSaid], own: Mapping[int, tuple[int, ...]]) -> dict[int, list[Piece]]:
    """Return what each rank writes beside its values. A box that several have is written once, by who has least to write.

    Raises:
        CheckpointError: Ranks have one tensor with different shapes, or one does not say where its share belongs.
    """
    holders: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, Piece]]] = {}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for each in said:
        for number, tensor in enumerate(each.tensors):
            name = _name(each.rank, tensor, is_own=number in own[each.rank])
            piece = _piece(number, name, tensor)
            if tensors.setdefault(name, (piece.dtype, piece.shape)) != (piece.dtype, piece.shape):
                raise CheckpointError(f"{name} has another shape or dtype on rank {each.rank} than on others")
            holders.setdefault((name, piece.offsets, piece.sizes), []).append((each.rank, piece))
    chosen: dict[int, list[Piece]] = {each.rank: [] for each in said}
    load = {each.rank: 0 for each in said}
    for having in holders.values():
        rank, piece = min(having, key=lambda held: (load[held[0]], held[0]))
        load[rank] += piece.size_bytes
        chosen[rank].append(piece)
    return chosen


def file_of(rank: int, pieces: Sequence[Piece], values_bytes: int) -> RankFile:
    """Return a rank's file: its pieces, and its values, which are of so many bytes."""
    shape = (values_bytes,)
    values = Piece(number=VALUES, name=values_name(rank), dtype="uint8", shape=shape, offsets=(0,), sizes=shape)
    ordered = [*pieces, values]
    offsets, _, size_bytes = lay_out([piece.size_bytes for piece in ordered], [])
    placed = [
        msgspec.structs.replace(piece, offset_bytes=offset) for piece, offset in zip(ordered, offsets, strict=True)
    ]
    return RankFile(rank=rank, pieces=tuple(placed), size_bytes=size_bytes)


def tensors_of(files: Sequence[RankFile]) -> tuple[Tensor, ...]:
    """Return the tensors of the manifest. Empty boxes are not kept: they are nothing to read."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    chunks: dict[str, list[Chunk]] = {}
    for number, file in enumerate(files):
        for piece in file.pieces:
            kinds[piece.name] = (piece.dtype, piece.shape)
            found = chunks.setdefault(piece.name, [])
            if piece.size_bytes:
                found.append(
                    Chunk(offsets=piece.offsets, sizes=piece.sizes, file=number, offset_bytes=piece.offset_bytes)
                )
    return tuple(
        Tensor(name=name, dtype=dtype, sizes=shape, chunks=tuple(chunks[name]))
        for name, (dtype, shape) in kinds.items()
    )


def _name(rank: int, tensor: SavedTensor, *, is_own: bool) -> str:
    alone = Values(step=0, rank=rank, world_size=rank + 1, tensors=(tensor,), tree=None, random=None, own=(0,) * is_own)
    return stored_name(alone, 0)


def _piece(number: int, name: str, tensor: SavedTensor) -> Piece:
    offsets = (0,) * len(tensor.shape) if tensor.layout is None else tensor.layout.offsets
    if offsets is None:
        raise CheckpointError(f"nothing says which share of {tensor.name} a rank has")
    return Piece(
        number=number, name=name, dtype=tensor.dtype, shape=tensor.shape, offsets=offsets, sizes=tensor.local_shape
    )
