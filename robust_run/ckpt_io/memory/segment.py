"""The bytes of a part: a head, an index, tensors. Pure.

    0           4096 bytes: magic, then little-endian u64: attempt, step, rank, world_size, index_bytes, payload_at, used_bytes
    4096        msgpack of `PartIndex`
    payload_at  (a multiple of 4096) tensors, each at a multiple of 64

All that is read is held against the size of the buffer before a byte of it is used, as others may have written it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from robust_run.ckpt_io.errors import SegmentRefused
from robust_run.ckpt_io.memory.types import MOST_STEP, PartIndex, TensorEntry
from robust_run.ckpt_io.rules.boxes import BYTES_OF, DIMENSIONS, volume
from robust_run.store.digests import digest as digest_of

MAGIC = b"RRMEM1\0\0"
HEAD_BYTES = 4096
TENSOR_ALIGNMENT_BYTES = 64
_HEAD = struct.Struct("<8s7Q")
#: Beyond what any buffer has: no arithmetic on what lies there gets out of hand.
_MOST_BYTES = 1 << 60
_decoder = msgspec.msgpack.Decoder(PartIndex)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Whose part it is, and how it is laid out."""

    attempt: int
    step: int
    rank: int
    world_size: int
    index_bytes: int
    payload_at: int
    used_bytes: int


class PartLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything goes in a buffer."""

    index: bytes
    """As it is written."""
    payload_at: int
    offsets: tuple[int, ...]
    """Of the tensors, from the beginning of the buffer, in the order in which they were named."""
    used_bytes: int


def layout(entries: Sequence[tuple[str, str, tuple[int, ...], int]], values: bytes) -> PartLayout:
    """Lay out tensors (name, dtype, shape, bytes) and what is no tensor.

    Raises:
        SegmentRefused: A name is there twice, or a size is not that of its shape and dtype.
    """
    farthest = [TensorEntry(name, dtype, tuple(shape), _MOST_BYTES, size) for name, dtype, shape, size in entries]
    for entry in farthest:
        _check_size(entry)
    room = len(_encoded(farthest, values))  # no offset is written longer
    payload_at = _up(HEAD_BYTES + room, HEAD_BYTES)
    placed, end = [], payload_at
    for entry in farthest:
        offset = _up(end, TENSOR_ALIGNMENT_BYTES)
        placed.append(msgspec.structs.replace(entry, offset=offset))
        end = offset + entry.nbytes
    _check_tensors(placed, payload_at, end)
    return PartLayout(
        index=_encoded(placed, values),
        payload_at=payload_at,
        offsets=tuple(entry.offset for entry in placed),
        used_bytes=end,
    )


def _encoded(tensors: Sequence[TensorEntry], values: bytes) -> bytes:
    try:
        return msgspec.msgpack.encode(PartIndex(tensors=tuple(tensors), values=values))
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:  # a name that is no text; 4 GiB of values
        raise SegmentRefused(f"its index cannot be written: {error}") from error


def write_head(view: memoryview, layout: PartLayout, attempt: int, step: int, rank: int, world_size: int) -> None:
    """Write the head and the index. Raises SegmentRefused where the buffer has no room for the part."""
    if layout.used_bytes > len(view):
        raise SegmentRefused(f"a part of {layout.used_bytes} bytes does not fit into a buffer of {len(view)} bytes")
    if not (0 <= rank < world_size and 0 <= attempt <= MOST_STEP and 0 <= step <= MOST_STEP):
        raise SegmentRefused(f"attempt {attempt}, step {step}, rank {rank} of {world_size} cannot be")
    index_bytes = len(layout.index)
    head = _HEAD.pack(MAGIC, attempt, step, rank, world_size, index_bytes, layout.payload_at, layout.used_bytes)
    view[:HEAD_BYTES] = head.ljust(HEAD_BYTES, b"\0")
    view[HEAD_BYTES : HEAD_BYTES + index_bytes] = layout.index


def read_head(view: memoryview, used_bytes: int) -> Head:
    """Return what the head says. Raises SegmentRefused."""
    if not HEAD_BYTES <= used_bytes <= min(len(view), _MOST_BYTES):
        raise SegmentRefused(f"{used_bytes} bytes are said to be used of a buffer of {len(view)} bytes")
    magic, attempt, step, rank, world_size, index_bytes, payload_at, used = _HEAD.unpack_from(view, 0)
    if magic != MAGIC:
        raise SegmentRefused(f"it begins with {bytes(magic)!r}, not with {MAGIC!r}")
    if used != used_bytes:
        raise SegmentRefused(f"its head says {used} bytes, its keeper {used_bytes}")
    if payload_at % HEAD_BYTES or not HEAD_BYTES + index_bytes <= payload_at <= used_bytes:
        raise SegmentRefused(f"an index of {index_bytes} bytes, tensors from {payload_at}, {used_bytes} bytes in all")
    if rank >= world_size or attempt > MOST_STEP or step > MOST_STEP:
        raise SegmentRefused(f"attempt {attempt}, step {step}, rank {rank} of {world_size} cannot be")
    return Head(
        attempt=attempt,
        step=step,
        rank=rank,
        world_size=world_size,
        index_bytes=index_bytes,
        payload_at=payload_at,
        used_bytes=used_bytes,
    )


def read(view: memoryview, used_bytes: int, digest: bytes | None = None) -> PartIndex:
    """Return what is in a part, every tensor of which lies within it. With its digest, its bytes are held against that.

    Raises:
        SegmentRefused: It is not what was saved, or contradicts itself.
    """
    head = read_head(view, used_bytes)
    if digest is not None and digest_of(view[:used_bytes]) != digest:
        raise SegmentRefused(f"the digest of its {used_bytes} bytes is not the one that was taken when it was saved")
    try:
        index = _decoder.decode(view[HEAD_BYTES : HEAD_BYTES + head.index_bytes])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SegmentRefused(f"its index cannot be read: {error}") from error
    _check_tensors(index.tensors, head.payload_at, used_bytes)
    return index


def _check_tensors(tensors: Sequence[TensorEntry], payload_at: int, used_bytes: int) -> None:
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise SegmentRefused("a tensor is named twice")
    for tensor in tensors:
        _check_size(tensor)
    end = payload_at
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.nbytes)):
        if tensor.offset % TENSOR_ALIGNMENT_BYTES or tensor.offset < end:
            raise SegmentRefused(f"tensor {tensor.name!r:.80} at {tensor.offset} is misplaced, or overlaps another")
        end = tensor.offset + tensor.nbytes
        if end > used_bytes:
            raise SegmentRefused(f"tensor {tensor.name!r:.80} ends at {end}, the part at {used_bytes}")


def _check_size(tensor: TensorEntry) -> None:
    try:
        if len(tensor.shape) > DIMENSIONS:
            raise ValueError(f"{len(tensor.shape)} dimensions")
        is_right = volume(tensor.shape) * BYTES_OF[tensor.dtype] == tensor.nbytes
    except (KeyError, ValueError) as error:
        raise SegmentRefused(f"tensor {tensor.name!r:.80} of dtype {tensor.dtype!r:.40} cannot be: {error}") from error
    if not is_right:
        raise SegmentRefused(f"tensor {tensor.name!r:.80} has {tensor.nbytes} bytes: not those of its shape and dtype")


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
