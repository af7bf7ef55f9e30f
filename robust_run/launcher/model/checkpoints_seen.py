"""Answer to `LookForCheckpoints`: delivered, not reported. No behaviour; not imported where none is asked for."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.seen import FolderLook


class CheckpointsSeen(msgspec.Struct, frozen=True, tag="checkpoints_seen", kw_only=True):
    """What one node sees of the checkpoints that an attempt may start from."""

    attempt: int
    number: int
    """Of the question."""
    look: FolderLook
