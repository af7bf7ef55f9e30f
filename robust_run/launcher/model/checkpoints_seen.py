"""Answer to `LookForCheckpoints`: delivered, not reported. No behaviour; not imported where none is asked for."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration


class CheckpointsSeen(msgspec.Struct, frozen=True, tag="checkpoints_seen", kw_only=True):
    """What one node sees of the checkpoints that an attempt may start from."""

    attempt: int
    number: int
    """Of the question."""
    look: FolderLook | None
    """None: the folder has not answered yet; another answer follows when it has."""
    memory: tuple[MemoryGeneration, ...] = ()
    """What the node's keeper holds whole. Beside the look, which is the same on all nodes and compared as such."""
    memory_room_bytes: int | None = None
    """How much more it may take; None: nothing is known that limits it."""
