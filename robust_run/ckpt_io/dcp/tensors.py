"""Tensors as bytes: what a dtype is called in a manifest, and the memory of a tensor as a buffer without a copy."""

from __future__ import annotations

import ctypes
import io

import torch
import torch.distributed as dist

from robust_run.ckpt_io.errors import ObjectRefused
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.errors import UserError


def dtype_name(dtype: torch.dtype, tensor: str) -> str:
    """Return what a manifest calls it: `float32`, `bfloat16`.

    Raises:
        UserError: The format has no name for it, as for quantised dtypes, whose scale lies elsewhere.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in BYTES_OF:
        raise UserError(
            f"tensor {tensor!r} of dtype {name} cannot be saved: dequantize() it, or save int_repr(), scale and zero point"
        )
    return name


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of that name.

    Raises:
        ObjectRefused: This version of torch has none.
    """
    dtype = getattr(torch, name, None) if name in BYTES_OF else None
    if not isinstance(dtype, torch.dtype):
        raise ObjectRefused(f"dtype {name!r:.80} is not known to torch {torch.__version__}; load it with a newer torch")
    return dtype


def has_plain_bytes(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory, read from front to back, is its elements in C order."""
    return bool(
        tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_meta
    )


def byte_view(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a CPU tensor with plain bytes, writable; the view keeps the tensor alive.

    Not by way of numpy, which torch does not need and which has no bfloat16.
    """
    assert tensor.device.type == "cpu" and has_plain_bytes(tensor), "only CPU memory in C order is a buffer"
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr())
    memory.tensor = tensor  # the view keeps the tensor alive
    return memoryview(memory).cast("B")


def on_host(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the tensor's elements on the CPU in C order: itself where they are already.

    Raises:
        UserError: It has no elements in memory (meta), or is sparse or quantised.
    """
    tensor = tensor.detach()
    dtype_name(tensor.dtype, name)
    if tensor.is_meta:
        raise UserError(f"tensor {name!r} is on the meta device and has no elements: give it memory before it is saved")
    if tensor.layout != torch.strided:
        raise UserError(
            f"tensor {name!r} has layout {tensor.layout}: only dense ones are saved; save its parts, or to_dense()"
        )
    return tensor.resolve_conj().resolve_neg().cpu().contiguous()


# --- Objects of a state dict that are no tensors: bytes of torch.save, which are pickle.
#
# DCP's planner loads them without restriction, so that a user who can write a checkpoint can run code wherever it is loaded. Here
# an object first goes through `torch.load(weights_only=True)`, which builds plain values only, and what comes out is written
# anew: what the planner loads is our own pickle, not the checkpoint's.


def vouched(data: bytes, name: str, url: str, *, trusted: bool) -> io.BytesIO:
    """Return an object's bytes for a planner to load.

    Raises:
        ObjectRefused: It is not trusted and needs more than plain values: a class that `torch.serialization.add_safe_globals`
            was not told of, or code.
    """
    if trusted:
        return io.BytesIO(data)
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if "global" in line.lower()), type(error).__name__
        )
        raise ObjectRefused(
            f"object {name!r:.200} of {url} is more than plain values ({reason:.200}); if you trust its author, "
            "load it with trust_objects=True, or allow its class with torch.serialization.add_safe_globals"
        ) from error
    fresh = io.BytesIO()
    torch.save(value, fresh)
    fresh.seek(0)
    return fresh


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Return where a group's backend moves data."""
    nccl = str(dist.get_backend(group)) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
