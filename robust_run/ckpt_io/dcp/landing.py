"""How the bytes of one read item get from a logical file into a tensor.

Straight into the tensor's own memory where that is CPU memory in C order of the same dtype and the runs of what is wanted are not
short; else into scratch, from which what is wanted is copied. Scratch is one block of memory that is used again and again (fresh
pages cost more than a disk's read), pinned where tensors are on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from robust_run.ckpt_io.dcp.tensors import dtype_of, has_plain_bytes
from robust_run.ckpt_io.rules.ranges import SHORT_RUN_BYTES, Box, pieces, run_bytes, runs, within
from robust_run.ckpt_io.rules.segments import Segment
from robust_run.errors import UserError

SCRATCH_BYTES = 256 << 20
#: Of one landing in scratch: what is larger lands in pieces.
PIECE_BYTES = 32 << 20
#: Reads that are handed on at once.
RUNS_AT_ONCE = 1 << 16
#: Where in scratch a landing begins: any dtype can be viewed there.
_SCRATCH_ALIGNMENT = 64


@dataclass(frozen=True)
class Run:
    """Bytes of a logical file, and where in the landing's memory they go."""

    file: int
    offset_bytes: int
    size_bytes: int
    at_bytes: int


@dataclass(frozen=True)
class Landing:
    """A box of a stored chunk on its way into `target`, which has the shape of `wanted`."""

    segment: Segment
    wanted: Box
    read: Box
    """What is read: `wanted`, or more around it."""
    target: torch.Tensor
    direct: bool
    """The bytes go into the target as they are."""

    @property
    def dtype(self) -> torch.dtype:
        """As stored."""
        return dtype_of(self.segment.dtype)

    @property
    def size_bytes(self) -> int:
        """Of what is read."""
        return self.read.elements * int(self.dtype.itemsize)

    def runs(self) -> Iterator[Run]:
        """Yield what to read, in the order of the landing's own memory."""
        at_bytes = 0
        for offset, size in runs(self.segment.sizes, self.read, self.dtype.itemsize):
            yield Run(self.segment.file, self.segment.offset_bytes + offset, size, at_bytes)
            at_bytes += size

    def own_memory(self) -> torch.Tensor:
        """Return the target's memory as bytes, on its own device. Only of a direct landing."""
        return self.target.reshape(-1).view(torch.uint8)

    def settle(self, scratch: torch.Tensor) -> None:
        """Copy what is wanted out of scratch (bytes, all of `read`) into the target."""
        whole = scratch.view(self.dtype).reshape(self.read.sizes)
        with torch.no_grad():
            self.target.copy_(whole[within(self.wanted, self.read)])


def landings(
    segment: Segment, wanted: Box, target: torch.Tensor, name: str, *, devices: Sequence[str] = ("cpu",)
) -> Iterator[Landing]:
    """Yield how a box of a segment gets into a tensor of its shape; `devices`: whose memory bytes can be put into.

    Raises:
        UserError: The target has another shape, or no memory.
    """
    target = target.detach()
    if tuple(target.shape) != wanted.sizes:
        raise UserError(
            f"{name!r}: a tensor of shape {tuple(target.shape)} is to hold {wanted.sizes} of the checkpoint; "
            "the planner's plan and its tensor differ"
        )
    if target.is_meta:
        raise UserError(f"{name!r} is on the meta device and cannot be loaded into: give it memory first (to_empty)")
    if wanted.elements == 0:
        return
    dtype = dtype_of(segment.dtype)
    item_bytes = dtype.itemsize
    plain = target.dtype == dtype and target.device.type in devices and has_plain_bytes(target)
    one_run = run_bytes(segment.sizes, wanted, item_bytes) == wanted.elements * item_bytes
    if plain and (one_run or run_bytes(segment.sizes, wanted, item_bytes) >= SHORT_RUN_BYTES):
        yield Landing(segment, wanted, wanted, target, direct=True)
        return
    for piece, read in pieces(segment.sizes, wanted, item_bytes, PIECE_BYTES):
        yield Landing(segment, piece, read, target[within(piece, wanted)], direct=False)


def batches(all_landings: Iterable[Landing], scratch_bytes: int = SCRATCH_BYTES) -> Iterator[list[Landing]]:
    """Part landings, in their order, so that the scratch and the number of reads of each batch are bounded."""
    batch: list[Landing] = []
    used_bytes = count = 0
    for landing in all_landings:
        more_bytes = 0 if landing.direct else aligned(landing.size_bytes)
        more = max(
            1, landing.size_bytes // max(1, run_bytes(landing.segment.sizes, landing.read, landing.dtype.itemsize))
        )
        if batch and (used_bytes + more_bytes > scratch_bytes or count + more > RUNS_AT_ONCE):
            yield batch
            batch, used_bytes, count = [], 0, 0
        batch.append(landing)
        used_bytes += more_bytes
        count += more
    if batch:
        yield batch


def aligned(size_bytes: int) -> int:
    """Return what a landing of that size takes of scratch."""
    return -(-size_bytes // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT


class LandingMemory:
    """One block of CPU memory, handed out in slices, taken back all at once; grows to the largest batch."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used_bytes = 0

    def begin(self, size_bytes: int) -> None:
        """Take everything back; the next slices fit into `size_bytes`, `aligned` each."""
        self._used_bytes = 0
        if self._block.numel() < size_bytes:
            self._block = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new one comes
            self._block = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def take(self, size_bytes: int) -> torch.Tensor:
        """Return the next slice, as bytes."""
        begin = self._used_bytes
        self._used_bytes += aligned(size_bytes)
        return self._block[begin : begin + size_bytes]
