"""The parts that this node's keeper has handed over: mapped so that they cannot be written, and verified."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import msgspec

from robust_run.checkpoint.flush.plan import RankSaid
from robust_run.checkpoint.rules.encoding import decode
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory import segment
from robust_run.ckpt_io.memory.flushing.words import OfferedPart
from robust_run.ckpt_io.memory.types import PartIndex
from robust_run.store.digests import digest


class HeldPart(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's part."""

    rank: int
    values: Values
    index: PartIndex
    view: memoryview

    def bytes_of(self, number: int) -> memoryview:
        """Return the bytes of a tensor, without a copy."""
        entry = self.index.tensors[number]
        return self.view[entry.offset : entry.offset + entry.nbytes]

    def said(self) -> RankSaid:
        """Return what other nodes are told of it."""
        tensors = self.values.tensors
        whole = [each.layout is None for each in tensors]
        return RankSaid(
            rank=self.rank,
            stream=self.values.stream,
            written_by=self.values.written_by,
            tensors=tensors,
            digests=tuple(digest(self.bytes_of(at)).hex() if is_whole else "" for at, is_whole in enumerate(whole)),
        )


def read(offered: OfferedPart, world_size: int) -> HeldPart:
    """Map and verify a part. Raises CheckpointError: it is not what was saved, or not of this rank."""
    where, view = _where(offered), _mapped(offered)
    index = segment.read(view, offered.used_bytes, bytes.fromhex(offered.digest))
    values = decode(index.values, where)
    if (values.rank, values.world_size, values.step) != (offered.rank, world_size, offered.step):
        raise CheckpointError(f"{where} is of rank {values.rank} of {values.world_size}, step {values.step}")
    said = [(entry.name, entry.dtype, tuple(entry.shape)) for entry in index.tensors]
    if said != [(each.name, each.dtype, each.local_shape) for each in values.tensors]:
        raise CheckpointError(f"{where} contradicts itself")
    return HeldPart(rank=offered.rank, values=values, index=index, view=view)


def stream_of(offered: OfferedPart) -> str:
    """Return the folder that a part belongs to; empty: its program named none. Raises CheckpointError: it cannot be read."""
    index = segment.read(_mapped(offered), offered.used_bytes)
    return decode(index.values, _where(offered)).stream


def _where(offered: OfferedPart) -> str:
    return f"the part of rank {offered.rank}, step {offered.step}, in memory"


def _mapped(offered: OfferedPart) -> memoryview:
    try:
        size_bytes = os.fstat(offered.descriptor).st_size
        return memoryview(mmap.mmap(offered.descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{_where(offered)}: it cannot be mapped: {error}") from error


def generations(parts: Sequence[OfferedPart], ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the generations of which all these ranks have a part, the newest first."""
    have: dict[tuple[int, int], set[int]] = {}
    for each in parts:
        have.setdefault((each.attempt, each.step), set()).add(each.rank)
    return sorted((generation for generation, found in have.items() if found >= set(ranks)), reverse=True)
