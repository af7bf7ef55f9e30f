"""The words of pages: what is known of a job and of an incident when a page is drawn. No behaviour.

All times are seconds since the epoch by the controller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from robust_run.report.effective import Standstill
from robust_run.report.heat import Heat
from robust_run.report.types import Incident
from robust_run.report.usage import UsagePoint
from robust_run.tracer.types import Scene


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A node of an attempt and its ranks: `first_rank` to `first_rank + nproc - 1`."""

    node: str
    first_rank: int
    nproc: int


class AttemptTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: when it began, worked and ended. None is 'not yet' or 'never'."""

    number: int
    places: tuple[NodePlace, ...] = ()
    world_size: int = 0
    ordered_s: float
    """When its nodes were told to start it."""
    started_s: float | None = None
    """When the last node had started all its workers."""
    first_step_s: float | None = None
    """When the first rank had made an optimizer step."""
    verdict_s: float | None = None
    """When the evidence named a culprit, before the attempt was ended; None where it is judged by how it ended."""
    evicted_s: float | None = None
    """When the first node was taken out of it."""
    onset_s: float | None = None
    """When what ended it began, where something failed."""
    told_s: float | None = None
    """When it was told to end."""
    ended_s: float | None = None
    """When no process of it was left on any node."""
    resumed: ReportedCheckpoint | None = None
    """The checkpoint that it began from, as far as is known."""
    anew_s: float | None = None
    """When the job began, if it is known to have started from the beginning again."""
    checked_s: float | None = None
    """When the checks of its nodes were over, where it was followed by some."""
    standstills: tuple[Standstill, ...] = ()
    """Waits in it that were only reported, in order of time."""
    steps: int | None = None
    """Most optimizer steps of any rank, once it is over; None: not counted."""
    code: int = 0
    """Number of the version of the code that ran; 0: not known."""
    how: str = ""
    """How its workers came: `16 promoted`."""

    @property
    def standing(self) -> Standstill | None:
        """The standstill that goes on; None: its ranks train, or it is over."""
        last = self.standstills[-1] if self.standstills else None
        is_over = self.told_s is not None or self.ended_s is not None or (last is not None and last.end_s is not None)
        return None if is_over else last


SpanKind = Literal[
    "productive",
    "first_start",
    "redone",
    "standstill",
    "unnoticed",
    "deciding",
    "ending",
    "checking",
    "waiting",
    "starting",
    "unused",
]
"""What a second of a job's life was spent on: see `ettr.SPAN_WORDS`."""


class LifeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a job's life spent on one thing."""

    kind: SpanKind
    begin_s: float
    end_s: float
    attempt: int = -1
    """The attempt that ran or was being started; -1: none."""


class ReportedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that an attempt could go on from."""

    created_s: float
    step: int | None = None


class Milestone(msgspec.Struct, frozen=True, kw_only=True):
    """A moment in the course of an incident."""

    name: str
    at_s: float


class IncidentCost(msgspec.Struct, frozen=True, kw_only=True):
    """What an incident cost, as far as known."""

    seconds: float
    """From the onset to the next attempt's first step, or to now or the end of the job where there is none."""
    ranks: int
    """That stood still meanwhile."""
    is_over: bool
    """Whether training goes on again."""
    steps: int | None = None
    """Steps that were made and have to be made again; None: not known."""
    is_most: bool = False
    """`steps` is what may have been lost at most."""
    redone_s: float = 0.0
    """What these steps had taken."""
    step_s: float = 0.0
    """What one of them took; 0: not known."""


class Accepts(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that would be carried out if they were typed when the page is drawn: nothing else is advised.

    Found by asking what would refuse them (`launcher.operator.views.accepting`).
    """

    check: bool = False
    """`robust check RUN --node NODE`, of the first node of the verdict: the job does not use it now."""
    check_all: bool = False
    """`robust check RUN --all`: there is a node that the job does not use now."""
    evict: bool = False
    """`robust evict NODE`: the job can do without it, and it is not evicted yet."""
    readmit: bool = False
    """`robust readmit NODE`: it is evicted."""
    restart: bool = False
    """`robust restart`: an attempt is under way."""
    update: bool = False
    """`robust update`: the job's code is kept."""
    rollback: bool = False
    """`robust code rollback`: there is a version to go back to."""
    code_log: bool = False
    """`robust code log` has something to list."""
    join: bool = False
    """One more agent would be let in."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """How the job is when a page of it is drawn, as far as that is known where it is drawn."""

    at_s: float
    """When that is."""
    life: Literal["running", "over", "gone", "unknown"] = "over"
    """running: its controller answers. over: its end is on record. gone: it did not end, and nothing controls it any more.
    unknown: nothing there can tell."""
    served: bool = False
    """By the controller to a browser that asks again and again; else it is a file that stays as it is."""
    note: str = ""
    """How it is known that it is gone, or why it is not known how it is; a clause."""
    command: str = ""
    """What to type then."""
    where: str = ""
    """On which host; empty: on this one."""
    accepts: Accepts = Accepts()

    @property
    def is_live(self) -> bool:
        """Whether the job runs."""
        return self.life == "running"


class IncidentPage(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page of one incident shows."""

    run_id: str
    run: str
    """How to name the run in a command."""
    script: str = ""
    incident: Incident
    incidents: int = 1
    """How many there are."""
    scene: Scene | None = None
    """What all ranks did, where the verdict rests on that."""
    attempt: AttemptTimes | None = None
    """The one it struck; None where the journal does not say."""
    following: AttemptTimes | None = None
    lost: IncidentCost | None = None
    files: tuple[str, ...] = ()
    """Those of its evidence that are there, where the page is drawn, below the run directory: the page leads to them."""
    drawn: Drawn


class ReportedSeries(msgspec.Struct, frozen=True, kw_only=True):
    """What a script reported under one name, newest last."""

    name: str
    values: tuple[float, ...]
    step: int | None = None
    """Of the newest."""


class EvictedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is not used."""

    node: str
    reason: str
    by: str
    at_s: float


class CodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the code and what became of it."""

    number: int
    fate: str
    why: str = ""
    by: str = ""
    note: str = ""
    summary: str = ""
    commit: str = ""
    at_s: float = 0.0
    first_attempt: int = -1


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An incident as a job's page lists it."""

    incident: Incident
    lost: IncidentCost


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page of a job shows."""

    run_id: str
    run: str
    script: str
    command: str = ""
    host: str = ""
    version: str = ""
    started_s: float
    drawn: Drawn
    known_s: float
    """Until when it is known how it was: now where it runs, else its end, or the last line of its journal."""
    ended_s: float | None = None
    phase: str = ""
    outcome: str = ""
    exit_code: int | None = None
    reason: str = ""
    world_size: int = 0
    nodes_active: int = 0
    nodes_standby: int = 0
    attempts: tuple[AttemptTimes, ...] = ()
    incidents: tuple[Happened, ...] = ()
    spans: tuple[LifeSpan, ...] = ()
    """The whole life of the job without gaps (`ettr.spans_of`)."""
    unread: str = ""
    """What could not be read of the incidents, as a clause."""
    counts_steps: bool = True
    """Whether first steps are known; else an attempt counts as productive once its workers run."""
    evictions: tuple[EvictedHost, ...] = ()
    code: tuple[CodeRow, ...] = ()
    heat: Heat | None = None
    heat_nodes: dict[int, str] = {}
    """Host names by rank, for the heat-map."""
    heat_note: str = ""
    """What the heat-map shows, or why there is none."""
    series: tuple[ReportedSeries, ...] = ()
    """What the script reports of its training."""
    series_rank: int = 0
    """Which rank does."""
    usage: tuple[UsagePoint, ...] = ()
    """How full, busy and hot nodes were, oldest first; empty: not known."""
    startup: str = ""
    """A fragment of HTML of ours with the start-up waterfall; empty: there is none."""
    starts: Mapping[int, float] = {}
    """By attempt, after how many seconds it had made its first step, where that was measured on its nodes."""
