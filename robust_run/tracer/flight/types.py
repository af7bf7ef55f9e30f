"""The words of the second clock: how far torch itself says that a rank has come in its groups. No behaviour."""

from __future__ import annotations

import msgspec

#: How what a recorder says begins, among reasons and evidence of other kinds.
OF_RECORDER = "torch's flight recorder: "


class GroupClock(msgspec.Struct, frozen=True, array_like=True):
    """How far a rank is in one process group, as one of torch's recorders counts."""

    pg: int
    """torch's number of the group, in this recorder of this process alone: a group that is made again gets another one."""
    enqueued: int
    """Number of the newest operation that it was given. On gloo sends and receives count, too; on NCCL they have a count of
    their own, and the newest of either is told."""
    started: int
    """Of the newest that has begun; -1: not told (gloo, and NCCL unless torch times collectives)."""
    completed: int
    """Of the newest that is over."""
    on_nccl: bool = False
    """Of NCCL's recorder; else of gloo's and other backends'."""

    @property
    def key(self) -> tuple[bool, int]:
        """What tells it apart from the other groups of its process."""
        return self.on_nccl, self.pg

    @property
    def is_open(self) -> bool:
        """Whether it has been given something that is not over."""
        return self.enqueued != self.completed


class GroupName(msgspec.Struct, frozen=True, array_like=True):
    """What a group is called that a recorder numbers."""

    on_nccl: bool
    pg: int
    name: str
    has_p2p: bool
    """It has been used for sends and receives: then its counts say nothing about those of other ranks."""
