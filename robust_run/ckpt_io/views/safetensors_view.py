"""A checkpoint's tensors as a virtual safetensors file: a header of ours, then each tensor where it lies.

The layout is the one of the format's description (github.com/huggingface/safetensors, "Format"): 8 bytes with the header's
length, a JSON object, the tensors' bytes without holes. Wider elements come first, so that each tensor is aligned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.boxes import BYTES_OF, box_bytes, volume
from robust_run.ckpt_io.rules.types import Chunk, Manifest, Tensor
from robust_run.ckpt_io.views.types import FileStretch, Literal, Plain, ViewPiece, VirtualFile

# --- A tensor that lies in several chunks, read as if it lay in one piece in C order. Pure.


def stretch_of(tensor: Tensor) -> FileStretch:
    """Return a tensor's bytes in C order."""
    if len(tensor.chunks) == 1:
        only = tensor.chunks[0]
        return Plain(only.file, only.offset_bytes, box_bytes(tensor.sizes, tensor.dtype))
    return Boxes(tensor)


class Boxes:
    """The bytes of a tensor that was saved in boxes.

    Each run of bytes that is contiguous both in the tensor and in its box is one piece: the innermost axis that was cut
    decides how long a run is.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.size_bytes = box_bytes(tensor.sizes, tensor.dtype)
        self._tensor = tensor
        self._item_bytes = BYTES_OF[tensor.dtype]
        self._chunks = tuple(chunk for chunk in tensor.chunks if volume(chunk.sizes))
        self._edges = [sorted({chunk.offsets[axis] for chunk in self._chunks}) for axis in range(len(tensor.sizes))]
        self._by_corner = {chunk.offsets: chunk for chunk in self._chunks}

    def pieces(self, start: int, end: int) -> Iterator[ViewPiece | bytes]:
        """Yield the runs that the bytes from `start` up to `end` lie in. Raises CheckpointError at one that no box holds."""
        while start < end:
            element, within = divmod(start, self._item_bytes)
            place = self._place(element)
            chunk = self._chunk_at(place)
            at, left = self._run(chunk, place)
            size = min(left * self._item_bytes - within, end - start)
            yield ViewPiece(chunk.file, chunk.offset_bytes + at * self._item_bytes + within, size)
            start += size

    def _place(self, element: int) -> tuple[int, ...]:
        place = []
        for size in reversed(self._tensor.sizes):
            element, index = divmod(element, size)
            place.append(index)
        return tuple(reversed(place))

    def _chunk_at(self, place: tuple[int, ...]) -> Chunk:
        """Return the box that holds an element: at once where the boxes form a grid, as those of a DTensor do."""
        corner = tuple(edges[bisect_right(edges, index) - 1] for edges, index in zip(self._edges, place, strict=True))
        candidate = self._by_corner.get(corner)
        for chunk in (candidate, *self._chunks) if candidate is not None else self._chunks:
            if all(o <= index < o + size for o, index, size in zip(chunk.offsets, place, chunk.sizes, strict=True)):
                return chunk
        raise CheckpointError(
            f"no chunk of tensor {self._tensor.name!r} holds its element {list(place)}: the checkpoint is not whole"
        )

    def _run(self, chunk: Chunk, place: tuple[int, ...]) -> tuple[int, int]:
        """Return an element's number within its box, and how many follow it, itself included, in the tensor's order too."""
        at = 0
        for index, offset, size in zip(place, chunk.offsets, chunk.sizes, strict=True):
            at = at * size + index - offset
        length = 1
        for size, whole in zip(reversed(chunk.sizes), reversed(self._tensor.sizes), strict=True):
            length *= size
            if size != whole:
                break
        return at, length - at % length


#: What safetensors calls the types of torch.
CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
#: What readers of the format accept.
HEADER_LIMIT_BYTES = 100_000_000


def safetensors_view(manifest: Manifest, name: str) -> VirtualFile:
    """Return a checkpoint's tensors as a safetensors file. Raises CheckpointError where that format cannot say it."""
    for tensor in manifest.tensors:
        if tensor.dtype not in CODES:
            raise CheckpointError(
                f"tensor {tensor.name!r} is {tensor.dtype}, which safetensors has no word for; "
                "robust ckpt convert --to dcp keeps all types"
            )
        if tensor.name == "__metadata__":
            raise CheckpointError("a tensor is called __metadata__, which safetensors keeps for itself")
    tensors = sorted(manifest.tensors, key=lambda tensor: (-BYTES_OF[tensor.dtype], tensor.name))
    stretches: list[FileStretch] = [Literal(_header(manifest, tensors))]
    stretches += (stretch_of(tensor) for tensor in tensors)
    return VirtualFile(name, stretches)


def _header(manifest: Manifest, tensors: list[Tensor]) -> bytes:
    facts = {"format": "pt", "rrck.uuid": manifest.uuid}
    if manifest.step is not None:
        facts["rrck.step"] = str(manifest.step)
    header: dict[str, object] = {"__metadata__": facts}
    at = 0
    for tensor in tensors:
        size = box_bytes(tensor.sizes, tensor.dtype)
        header[tensor.name] = {"dtype": CODES[tensor.dtype], "shape": tensor.sizes, "data_offsets": (at, at + size)}
        at += size
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT_BYTES:
        raise CheckpointError(
            f"{len(tensors)} tensors need a safetensors header of {len(text)} bytes, and readers take {HEADER_LIMIT_BYTES}"
        )
    return len(text).to_bytes(8, "little") + text
