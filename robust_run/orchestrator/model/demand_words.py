"""What was measured of the demand for roles in one window of time. No behaviour."""

from __future__ import annotations

import msgspec


class MemberDemand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One member in a window. Shares are of the window's time, mean over its ranks."""

    idle: float = 0.0
    """Share of time that it waited at any queue and had nothing to work on."""
    waits: dict[str, float] = {}
    """Share of time that it waited for items, by queue."""
    blocked: dict[str, float] = {}
    """Share of time that it waited for room, by queue."""
    took: dict[str, int] = {}
    """How often it got items, by queue."""
    put: dict[str, int] = {}
    has_put: bool = False
    """It has put something since it came: it is warm."""
    is_whole: bool = False
    """All ranks that were seen of it were here for the whole window, none of them new."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="measured"):
    """A window of time has passed."""

    members: dict[str, MemberDemand] = {}
    """By name: those whose ranks have used queues in this window or before."""
    waiting: dict[str, int] = {}
    """Items that wait in each queue now."""
    length_s: float = 0.0
    """How long the window was; 0: it began with the process that measures."""
    is_starved: bool = False
    """The machine of the leader was short of CPU: who waits may wait for that."""
