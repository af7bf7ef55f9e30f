"""Whom to look at: the workers of this node."""

from __future__ import annotations

import msgspec

from robust_run.health.types import Finding


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of this node, as its launcher knows it."""

    rank: int
    """Global."""
    node: str
    pid: int
    """Of the process that the launcher started: the rank, or a wrapper around it."""
    steps_file: str = ""
    """Its ring, stacks and socket lie beside it; "": not armed."""
    exit_code: int | None = None
    ended_at_s: float | None = None
    finding: Finding | None = None
    """What its stderr says, if it has ended."""
    had_ended: bool = False
    """Its program had come to its end when it died of a signal."""
    alive: bool = True
    """It has not been waited for, so its pid is its own."""

    @property
    def is_there(self) -> bool:
        """Whether there is a process to look at; never if the pid may have been given to another."""
        return self.alive and self.exit_code is None and self.ended_at_s is None
