"""The words of what the runs of a fleet add up to, as `robust fleet --json` prints them. No behaviour but for what follows from
the fields."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from robust_run.fleet.words import Began, State

LEAST_DAYS = 1.0
"""Of less node time than so many days no rate is shown to people."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happens: failures per 1,000 node-days, and the exact 95 % interval of it (Garwood)."""

    count: int
    node_days: float
    per_1000: float
    low: float
    high: float


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Time that was lost to something."""

    incidents: int = 0
    seconds: float = 0.0
    node_hours: float = 0.0
    """The same, times the nodes that stood still meanwhile."""


class NodeCount(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on one node."""

    node: str
    node_days: float
    """It was so long part of a job; 0: not known."""
    incidents: int
    """That name it."""
    kinds: Mapping[str, int]
    evicted: int
    last_s: float
    """The newest of them."""
    failures: int
    """Its own: what counts when lemons are looked for."""


class Lemon(msgspec.Struct, frozen=True, kw_only=True):
    """A node that fails more often than chance explains."""

    node: str
    failures: int
    expected: float
    """At the rate of the others."""
    times: float
    """So many times as often as the others."""
    chance: float
    """That any healthy node of this fleet shows as much; corrected for how many were looked at."""
    rate: Rate
    kinds: Mapping[str, int]
    runs: int
    last_s: float


class LemonSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what could have been."""

    lemons: tuple[Lemon, ...] = ()
    """The least probable first."""
    nodes: int = 0
    """Looked at."""
    failures: int = 0
    """Of theirs that count."""
    needed: int | None = None
    """A typical node is named from so many failures on; None: there is no other node to compare it with."""

    @property
    def is_too_few(self) -> bool:
        """Whether no node could have been named, had all failures been its own."""
        return self.needed is None or self.failures < self.needed


class StartGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What starts of jobs of one size cost."""

    least_nodes: int
    most_nodes: int
    began: Began
    starts: int
    ready_s: float | None = None
    """Median, until all workers ran."""
    first_step_s: float | None = None
    """Median, from there to the first step."""
    whole_s: float | None = None
    """Median of both together."""
    whole_p95_s: float | None = None


class CodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a program that failed."""

    name: str
    """The job's."""
    version: str
    failed: int
    runs: int
    rolled_back: int
    """In so many of them."""
    last_s: float
    """When a run with it was last known of."""


class CoursePoint(msgspec.Struct, frozen=True, kw_only=True):
    """How the fleet did in one stretch of time."""

    begin_s: float
    end_s: float
    run_s: float
    """Of all runs together."""
    ettr: float | None = None
    incidents: int = 0


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list of all."""

    run_id: str
    name: str
    place: str
    state: State
    began_s: float
    until_s: float
    nodes: int
    gpus: int
    ettr: float | None
    incidents: int
    kinds: Mapping[str, int]


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """Directories that are not in the figures."""

    why: str
    count: int
    example: str = ""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of some folders add up to. Hours are of all runs together."""

    at_unix_s: float = 0.0
    since_unix_s: float | None = None
    folders: tuple[str, ...] = ()
    begin_unix_s: float | None = None
    end_unix_s: float | None = None
    runs: int = 0
    by_state: Mapping[str, int] = {}
    cut: int = 0
    """Runs that began before `since`: of their times only the share after it counts."""
    twice: int = 0
    """Runs that were found in more than one place, and count once."""
    with_gaps: int = 0
    """Runs whose journal could not be written to their end."""
    gap_hours: float = 0.0
    """So much of their time is not known, and counts nowhere."""
    hours: float = 0.0
    node_hours: float = 0.0
    gpu_hours: float = 0.0
    ettr: float | None = None
    """Effective time over all time, of runs whose ETTR is known."""
    ettr_by_node_hours: float | None = None
    """The same, large jobs count more."""
    ettr_runs: int = 0
    """So many runs' ETTR is known."""
    incidents: int = 0
    by_kind: Mapping[str, Part] = {}
    by_component: Mapping[str, Part] = {}
    by_action: Mapping[str, Part] = {}
    by_phase: Mapping[str, Part] = {}
    """Of incidents."""
    other: Part = Part()
    """What no incident cost: first starts, ends, controllers that were gone."""
    nodes: tuple[NodeCount, ...] = ()
    """Those with incidents, the most failures first."""
    nodes_seen: int = 0
    rates: Mapping[str, Rate] = {}
    """interruptions, machine faults, evictions."""
    kind_rates: Mapping[str, Rate] = {}
    component_rates: Mapping[str, Rate] = {}
    lemons: LemonSearch = LemonSearch()
    starts: tuple[StartGroup, ...] = ()
    code: tuple[CodeRow, ...] = ()
    course: tuple[CoursePoint, ...] = ()
    lines: tuple[RunLine, ...] = ()
    """Those that live first, then the newest first."""
    skipped: tuple[Skipped, ...] = ()

    @property
    def shows_rates(self) -> bool:
        """Whether there is time enough for rates: of a minute they are large numbers that mean nothing."""
        return any(each.node_days >= LEAST_DAYS for each in self.rates.values())
