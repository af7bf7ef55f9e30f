"""Starts of many jobs folded: median and 95 % of each phase by number of nodes, and nodes that are slow again and again. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from robust_run.report.startup.profile_types import (
    Kind,
    PhaseFigures,
    StartGroup,
    StartProfile,
    UnreadRun,
)
from robust_run.report.startup.slow_nodes import SlowNodes
from robust_run.report.startup.types import PHASES, AttemptStartup, Phase, Startup


class _Phase(msgspec.Struct):
    """What is gathered of one phase in one group."""

    median_s: list[float] = []
    longest: tuple[float, str, str] = (-1.0, "", "")
    """Seconds, run, node."""


class _Group:
    __slots__ = ("phases", "runs", "total_s")

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.total_s: list[float] = []
        self.phases: dict[Phase, _Phase] = {}

    def add(self, run: str, attempt: AttemptStartup) -> None:
        self.runs.add(run)
        self.total_s.append(attempt.total_s)
        for each in attempt.phases:
            phase = self.phases.setdefault(each.phase, _Phase())
            phase.median_s.append(each.median_s)
            phase.longest = max(phase.longest, (each.longest_s, run, each.node))


class ProfileFold:
    """Takes one run after the other, and keeps of each what the figures need."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Kind, int], _Group] = {}
        self._nodes = SlowNodes()
        self._unread: list[UnreadRun] = []
        self._runs = self._starts = self._unfinished = 0

    def leave_out(self, unread: UnreadRun) -> None:
        """Count a run directory of which nothing is known."""
        self._unread.append(unread)

    def add(self, path: str, startup: Startup) -> None:
        """Add all starts of a run."""
        finished = [attempt for attempt in startup.attempts if is_finished(attempt)]
        if not finished:
            why = "no start is on record" if not startup.attempts else "no start got to the first step of all its ranks"
            self.leave_out(UnreadRun(path=path, kind="unfinished", why=why))
            return
        self._runs += 1
        self._starts += len(finished)
        self._unfinished += len(startup.attempts) - len(finished)
        for attempt in finished:
            kind: Kind = "restart" if attempt.attempt else "first"
            self._groups.setdefault((kind, attempt.nodes), _Group()).add(path, attempt)
            self._nodes.add(path, attempt)

    def profile(self, folders: Sequence[str]) -> StartProfile:
        """Return what all of them show."""
        return StartProfile(
            folders=tuple(folders),
            runs=self._runs,
            starts=self._starts,
            unfinished_starts=self._unfinished,
            groups=tuple(_figures(key, self._groups[key]) for key in sorted(self._groups)),
            slow_nodes=self._nodes.named(self._runs),
            nodes_compared=self._nodes.nodes,
            starts_compared=self._nodes.starts,
            unread=tuple(self._unread),
        )


def is_finished(attempt: AttemptStartup) -> bool:
    """Whether all ranks that are known of have made their first step."""
    return 0 < attempt.stepped_ranks == attempt.seen_ranks


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that is not below this part of them."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _figures(key: tuple[Kind, int], group: _Group) -> StartGroup:
    total_s = sorted(group.total_s)
    return StartGroup(
        kind=key[0],
        nodes=key[1],
        starts=len(total_s),
        runs=len(group.runs),
        median_s=quantile(total_s, 0.5),
        p95_s=quantile(total_s, 0.95),
        phases=tuple(_phase(phase, group.phases[phase]) for phase in PHASES if phase in group.phases),
    )


def _phase(phase: Phase, found: _Phase) -> PhaseFigures:
    ordered = sorted(found.median_s)
    longest_s, run, node = found.longest
    return PhaseFigures(
        phase=phase,
        starts=len(ordered),
        median_s=quantile(ordered, 0.5),
        p95_s=quantile(ordered, 0.95),
        longest_s=longest_s,
        longest_run=run,
        longest_node=node,
    )


def unread_counts(unread: Iterable[UnreadRun]) -> dict[str, int]:
    """Return how many run directories have no part, by why."""
    counts: dict[str, int] = {}
    for each in unread:
        counts[each.kind] = counts.get(each.kind, 0) + 1
    return counts
