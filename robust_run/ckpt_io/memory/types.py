"""The words of the memory tier.

A *part* is what one rank saved at one step. A *generation* is the parts of one attempt and step. A *buffer* has room for a part;
a rank has three: two that hold something, and one that is written. The *keeper* is the process of a node that owns them.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from robust_run.ckpt_io.seen import MemoryGeneration as MemoryGeneration  # noqa: PLC0414 - the launcher has it from there
from robust_run.ckpt_io.seen import MemoryHeld as MemoryHeld  # noqa: PLC0414 - likewise

BUFFERS = 3
"""Of one rank: two generations that are whole, and one in the making."""
MOST_STEP = 1 << 62
_NAME = re.compile(r"memory-([0-9]{1,9})-([0-9]{1,19})(?:-of-([1-9][0-9]{0,8}))?")


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


def generation_name(attempt: int, step: int, saved_by: int = 0) -> str:
    """Return what stands where checkpoints have the name of their folder. `saved_by`: so many ranks, if others load it."""
    return f"memory-{attempt}-{step}" + (f"-of-{saved_by}" if saved_by else "")


def generation_address(attempt: int, step: int, saved_by: int = 0) -> str:
    """Return what workers are told as ROBUST_RESUME. `saved_by`: so many ranks, if there are more or fewer of them now."""
    return f"rrck+memory://{attempt}/{step}" + (f"?of={saved_by}" if saved_by else "")


def generation_of_name(name: str) -> tuple[int, int] | None:
    """Return attempt and step of such a name; None: it is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def saved_by_of_name(name: str) -> int:
    """Return how many ranks saved what has this name, if others load it; 0: as many as load it, or it is no such name."""
    found = _NAME.fullmatch(name)
    return 0 if found is None else int(found[3] or 0)
