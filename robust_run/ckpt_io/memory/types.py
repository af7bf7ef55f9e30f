"""The words of the memory tier.

A *part* is what one rank saved at one step. A *generation* is the parts of one attempt and step. A *buffer* has room for a part;
a rank has three: two that hold something, and one that is written. The *keeper* is the process of a node that owns them.
"""

from __future__ import annotations

import hashlib

import msgspec

from robust_run.ckpt_io.seen import MemoryGeneration as MemoryGeneration  # noqa: PLC0414 - the launcher has it from there

BUFFERS = 3
"""Of one rank: two generations that are whole, and one in the making."""
MOST_STEP = 1 << 62


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of one tensor are in a part."""

    name: str
    dtype: str
    """As `ckpt_io.dcp.tensors.dtype_name` writes it."""
    shape: tuple[int, ...]
    offset: int
    """From the beginning of the buffer."""
    nbytes: int


class PartIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a part."""

    tensors: tuple[TensorEntry, ...]
    values: bytes = b""
    """What is no tensor, as the one who saves encodes it: data, never code."""


def generation_uuid(run_id: str, attempt: int, step: int) -> str:
    """Return what names a generation among checkpoints: 32 hexadecimal digits, the same on every node."""
    said = f"memory\0{run_id}\0{attempt}\0{step}".encode()
    return hashlib.blake2b(said, digest_size=16).hexdigest()


def generation_name(attempt: int, step: int) -> str:
    """Return what stands where checkpoints have the name of their folder."""
    return f"memory-{attempt}-{step}"


def generation_address(attempt: int, step: int) -> str:
    """Return what workers are told as ROBUST_RESUME."""
    return f"rrck+memory://{attempt}/{step}"


def generation_of_name(name: str) -> tuple[int, int] | None:
    """Return attempt and step of such a name; None: it is none."""
    words = name.split("-")
    if len(words) != 3 or words[0] != "memory" or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    return int(words[1]), int(words[2])
