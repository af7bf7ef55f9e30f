"""The words of start-ups across jobs, as `robust report --startups --json` prints them. No behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.report.startup.types import Phase

Kind = Literal["first", "restart"]
Unread = Literal["damaged", "other version", "not timed", "not reached", "unfinished"]

UNREAD_MEANINGS: dict[Unread, str] = {
    "damaged": "its startup.json cannot be read",
    "other version": "its startup.json is of another version of robust-run",
    "not timed": "there is no startup.json: an older version, ROBUST_STARTUP=0, or it has hardly begun",
    "not reached": "it is no run directory and no folder of runs, or may not be read",
    "unfinished": "no start of it is known to the first step of all its ranks",
}


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One phase over many starts. A start counts with its median rank."""

    phase: Phase
    starts: int
    """Those that had it at all; the figures are of these."""
    median_s: float
    p95_s: float
    longest_s: float
    """Of any rank in any of them,"""
    longest_run: str
    """in this run,"""
    longest_node: str
    """on this node."""


class StartGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Starts that can be compared: first starts, or restarts, of jobs with as many nodes."""

    kind: Kind
    nodes: int
    starts: int
    runs: int
    median_s: float
    """Until the first step of the last rank, from the launcher's start on."""
    p95_s: float
    phases: tuple[PhaseFigures, ...]


class SlowPhase(msgspec.Struct, frozen=True, kw_only=True):
    """In which phase a node was slow."""

    phase: Phase
    starts: int
    extra_s: float
    """By how much more than its peers, in the median of these starts."""
    times: float
    """How many times as long as theirs. 0: they had no such phase."""


class SlowNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is slow again and again."""

    node: str
    slow_starts: int
    starts: int
    """Those in which it was compared with peers."""
    runs: int
    """In which it was slow at least once,"""
    runs_compared: int
    """of those in which it was compared."""
    phases: tuple[SlowPhase, ...]
    """That in which it was slow most often first."""
    others_share: float
    """The part of starts in which other nodes were slow."""


class UnreadRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory that has no part in the figures."""

    path: str
    kind: Unread
    why: str


class StartProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of some folders started."""

    folders: tuple[str, ...]
    runs: int
    """That have a part in the figures."""
    starts: int
    unfinished_starts: int
    """Of the same runs: without a first step of all ranks."""
    groups: tuple[StartGroup, ...]
    """First starts before restarts, fewer nodes before more."""
    slow_nodes: tuple[SlowNode, ...]
    """The one that was slow most often first."""
    nodes_compared: int
    starts_compared: int
    """Starts of several nodes, all of which are known by name."""
    unread: tuple[UnreadRun, ...]
