"""What is in a safetensors file, from its header: checked, so that each tensor is a range of the file."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.boxes import BYTES_OF, box_bytes
from robust_run.ckpt_io.rules.types import Chunk, Tensor
from robust_run.ckpt_io.views.safetensors_view import CODES, HEADER_LIMIT_BYTES
from robust_run.decoders import json_decoder

_DTYPES = {code: dtype for dtype, code in CODES.items()}


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_tensors(read: Callable[[int, int], bytes], size_bytes: int, file: int) -> tuple[Tensor, ...]:
    """Return the tensors of a safetensors file as chunks of logical file number `file`.

    `read(offset, size)` returns bytes of it. Raises CheckpointError for a header that is none.
    """
    if size_bytes < 8:
        raise CheckpointError(f"it has {size_bytes} bytes, too few for a safetensors file")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(HEADER_LIMIT_BYTES, size_bytes - 8):
        raise CheckpointError(f"its header claims {length} bytes of {size_bytes}: no safetensors file, or cut off")
    try:
        header = msgspec.json.decode(read(8, length), type=dict[str, msgspec.Raw])
        entries = {name: json_decoder(_Entry).decode(raw) for name, raw in header.items() if name != "__metadata__"}
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CheckpointError(f"its safetensors header is damaged: {str(error)[:200]}") from error
    tensors = tuple(_tensor(name, entry, 8 + length, file) for name, entry in entries.items())
    _check_places(entries, size_bytes - 8 - length)
    return tensors


def _tensor(name: str, entry: _Entry, start: int, file: int) -> Tensor:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None or dtype not in BYTES_OF:
        raise CheckpointError(f"tensor {name[:80]!r} has elements of type {entry.dtype[:20]!r}, which is not known")
    begin, end = entry.data_offsets
    try:
        expected = box_bytes(entry.shape, dtype)
    except ValueError as error:
        raise CheckpointError(f"tensor {name[:80]!r}: {error}") from error
    if begin < 0 or end - begin != expected:
        raise CheckpointError(f"tensor {name[:80]!r} has {end - begin} bytes, its shape needs {expected}")
    chunk = Chunk(offsets=(0,) * len(entry.shape), sizes=entry.shape, file=file, offset_bytes=start + begin)
    return Tensor(name=name, dtype=dtype, sizes=entry.shape, chunks=(chunk,))


def _check_places(entries: dict[str, _Entry], data_bytes: int) -> None:
    places = sorted(entry.data_offsets for entry in entries.values())
    if places and places[-1][1] > data_bytes:
        raise CheckpointError(f"its tensors end at byte {places[-1][1]}, and the file has {data_bytes}: it is cut off")
    if any(one[1] > other[0] for one, other in pairwise(places)):
        raise CheckpointError("two of its tensors share bytes")
