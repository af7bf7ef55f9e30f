"""What a keeper tells the process that writes a generation to storage, and what that answers. Plain data.

The process (`robust_run.checkpoint.flush`) reads one JSON line from its standard input and writes JSON lines to its standard
output: how far it is, and at last how it ended. The parts come as descriptors that it inherits.
"""

from __future__ import annotations

import hashlib

import msgspec

from robust_run.ckpt_io.rules.keeping import KeepNewest

Generation = tuple[int, int]
"""Attempt and step."""


class OfferedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part that this node holds whole."""

    attempt: int
    step: int
    rank: int
    descriptor: int
    used_bytes: int
    digest: str
    """In hexadecimal digits."""
    created_s: float


class RemoveOld(msgspec.Struct, frozen=True, kw_only=True, tag="remove"):
    """Older checkpoints in a folder are to be removed, as far as they may be."""

    folder: str
    rule: KeepNewest


class FlushOrder(msgspec.Struct, frozen=True, kw_only=True, tag="write"):
    """What is to be written."""

    run_id: str
    run_dir: str = ""
    """Of the launcher, where a note of the save is left; empty: nowhere."""
    storage: str = ""
    """Where it goes if this node has nothing of it, and only says so to the others."""
    attempt: int = -1
    """The newest that this node has begun."""
    world_size: int
    ranks: tuple[int, ...]
    """Of this node."""
    parts: tuple[OfferedPart, ...]
    """Of all these ranks, of each generation that may be written: the newest that all nodes have is."""
    is_last: bool = False
    """The job is over: what storage has already, or something newer, is not written again."""
    wait_s: float = 60.0
    """How long other nodes may show no sign of going on."""
    failed: tuple[Generation, ...] = ()
    """Those of which a write was cut off: what is left of it is removed first."""


class FlushProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far it is."""

    step: int
    done_bytes: int
    of_bytes: int
    url: str


class FlushDone(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """It is over."""

    attempt: int = -1
    step: int = -1
    text: str = ""
    """A line for people; empty: another node says it, or there is nothing to say."""
    trouble: str = ""
    """Why it could not be written, whichever step it is; empty: `text` says all."""
    is_stored: bool = False
    """Storage has this step."""
    is_left: bool = False
    """Something unfinished may lie there."""
    remove: RemoveOld | None = None
    """What may be done now; on the node of rank 0 only."""


class FlushSilent(msgspec.Struct, frozen=True, kw_only=True):
    """It has said nothing for so long; of those who wait for it."""

    silent_s: float


AnyOrder = FlushOrder | RemoveOld
FlushAnswer = FlushProgress | FlushDone


def flush_uuid(run_id: str, attempt: int, step: int) -> str:
    """Return what names the save of a generation, the same on every node: 32 hexadecimal digits."""
    return hashlib.blake2b(f"flush\0{run_id}\0{attempt}\0{step}".encode(), digest_size=16).hexdigest()
