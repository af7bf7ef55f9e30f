"""Tensors made and named bit by bit: the same numbers on every machine, and a digest of what came out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import xxhash

#: Numbers modulo 2**31 by multiplication with Park and Miller's constant stay exact in 64 bits.
_MULTIPLIER, _PRIME = 48271, 2147483647


def integers(torch: Any, shape: tuple[int, ...], seed: int, top: int) -> Any:
    """Return integers from 0 to `top` - 1 as an int64 tensor of the CPU, the same for a seed anywhere.

    No generator of torch: its normal numbers go through logarithms, whose last bit depends on the CPU.
    """
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(1, count + 1, dtype=torch.int64) + (seed * 7919) % _PRIME
    for step in range(4):
        values = (values * _MULTIPLIER + 12345 * (step + 1)) % _PRIME
        values = values ^ (values >> 15)
    return (values % top).reshape(shape)


def fractions(torch: Any, shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Any:
    """Return float32 numbers in [-scale, scale), exactly the same anywhere; `scale` is a power of two."""
    whole = integers(torch, shape, seed, 1 << 24)
    return (whole - (1 << 23)).to(torch.float32) * (scale / (1 << 23))


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Return 32 hexadecimal digits of all bits of the tensors."""
    state = xxhash.xxh3_128()
    for tensor in tensors:
        flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        state.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        state.update(memoryview(bytes_of(flat)))
    return state.hexdigest()


def are_same_bits(torch: Any, one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether tensors are equal bit by bit, compared where they are; NaN equals itself, and 0 differs from -0."""
    return all(torch.equal(bits(torch, left), bits(torch, right)) for left, right in zip(one, other, strict=True))


def bits(torch: Any, tensor: Any) -> Any:
    """Return a floating-point tensor as integers of the same size."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().contiguous().reshape(-1).view(words).reshape(tensor.shape)


def bytes_of(flat: Any) -> Any:
    """Return a buffer over a contiguous uint8 tensor of the CPU, without numpy."""
    import ctypes

    if flat.numel() == 0:
        return b""
    return (ctypes.c_char * flat.numel()).from_address(flat.data_ptr())
