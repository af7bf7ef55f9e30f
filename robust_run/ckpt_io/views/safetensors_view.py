"""A checkpoint's tensors as one safetensors file that nobody wrote: a header of ours, then each tensor where it lies.

The layout is the one of the format's description (github.com/huggingface/safetensors, "Format"): 8 bytes with the header's
length, a JSON object, the tensors' bytes without holes. Wider elements come first, so that each tensor is aligned.
"""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.boxes import BYTES_OF, box_bytes
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.types import Manifest, Tensor
from robust_run.ckpt_io.views.tensor_bytes import stretch_of
from robust_run.ckpt_io.views.types import Literal, Stretch
from robust_run.ckpt_io.views.virtual import VirtualFile

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
    stretches: list[Stretch] = [Literal(_header(manifest, tensors))]
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
