"""The words of starts: what a node tells of one (`NodeStart`), and what startup.json keeps of all (`Startup`). No behaviour.

Times of a `NodeStart` are monotonic; those of a `Startup` are seconds since its attempt began, which is when the first launcher
of it was started, or for a restart when the first node was told to start workers.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from robust_run.tracer.files.marks import MOST_SPANS, StartMark

Phase = Literal[
    "queue", "script", "agent", "image", "snapshot", "meet", "spawn", "imports", "init", "load", "program", "first_step"
]

PHASES: tuple[Phase, ...] = (
    "queue", "script", "agent", "image", "snapshot", "meet", "spawn", "imports", "init", "load", "program", "first_step",
)  # fmt: skip
"""In the order in which they come."""

MEANINGS: dict[Phase, str] = {
    "queue": "waiting in Slurm's queue",
    "script": "the batch script before robust-run",
    "agent": "robust-run itself",
    "image": "mounting the image",
    "snapshot": "the set-up: built, found or restored",
    "meet": "waiting for the other nodes",
    "spawn": "starting the worker's interpreter",
    "imports": "importing modules",
    "init": "init_process_group",
    "load": "loading a checkpoint",
    "program": "the program itself, between the others",
    "first_step": "from the last of these to the end of the first optimizer step",
}
WAITS: frozenset[Phase] = frozenset({"meet", "init", "first_step"})
"""Phases in which ranks wait for each other: there the slowest is the one that waits least."""

SCHEMA = 1
MOST_RANKS = 1024
"""Of one node, on the wire."""
ALL_RANKS = 64
"""An attempt of so many ranks is kept whole."""
SLOWEST_RANKS = 32
"""Of a larger one so many are."""
ALL_NODES = 128
SLOWEST_NODES = 48
"""The same of nodes."""
MOST_NAMES = 10_000
"""Names of further nodes, kept of the same attempts as rows."""
MOST_ROW_SPANS = 24
DETAILED_ATTEMPTS = 8
"""Newest attempts, and the first, that are kept with their ranks; of others only the phases are."""
MOST_ATTEMPTS = 200
MOST_STRAGGLERS = 8
MOST_FETCHES = 8
"""Of one node."""


class RankMarks(msgspec.Struct, frozen=True, array_like=True):
    """What is seen of one rank's start."""

    rank: int
    how: str
    """promote, fork or spawn; empty: not known."""
    armed_s: float | None = None
    """When its interpreter was there; None: not noted (not Python, or ROBUST_TRACE=0)."""
    spans: Annotated[tuple[StartMark, ...], msgspec.Meta(max_length=MOST_SPANS)] = ()
    open_kind: int = 0
    opened_s: float = 0.0
    first_step_s: float | None = None
    """When its first optimizer step ended."""
    read_bytes: int = -1
    """What its process had read from disks by now; -1: not known."""


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """Something that a node fetched beside what its ranks did."""

    what: str
    """What people call it: checkpoint."""
    began_s: float
    ended_s: float
    """When all of it was there; while it is not, when it was looked at."""
    size_bytes: int
    from_nodes_bytes: int = 0
    """Of these, what came from other nodes of the job."""
    is_whole: bool = True
    """Nothing is still to come."""


class FetchRow(msgspec.Struct, frozen=True, array_like=True):
    """The same, of which node, by the attempt's clock."""

    node: str
    fetch: Fetch


class NodeStart(msgspec.Struct, frozen=True, kw_only=True):
    """What one node's agent says of the start of an attempt there; later ones replace earlier ones."""

    attempt: int
    node: str = ""
    """Its host; filled in by the controller."""
    seen_s: float
    """When this was looked at."""
    began_s: float
    """When the agent began to start the workers."""
    launched_s: float | None = None
    """When the launcher was started, if this is its first attempt."""
    place: Literal["", "image", "snapshot"] = ""
    place_began_s: float = 0.0
    place_ended_s: float = 0.0
    fetches: Annotated[tuple[Fetch, ...], msgspec.Meta(max_length=MOST_FETCHES)] = ()
    ready_s: float | None = None
    """When this node had nothing more to do than to meet the others; None: it had none to meet."""
    uses: Annotated[tuple[str, ...], msgspec.Meta(max_length=32)] = ()
    """Names of options that make starts shorter and were given, and what else advice depends on (see `advise`)."""
    ranks: Annotated[tuple[RankMarks, ...], msgspec.Meta(max_length=MOST_RANKS)]
    is_last: bool = False
    """Nothing more will be said: all ranks have made a step, or the attempt has ended."""


class StartSpan(msgspec.Struct, frozen=True, array_like=True):
    """A part of a start."""

    phase: Phase
    began_s: float
    ended_s: float


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """The start of one rank, its node's part included."""

    rank: int
    node: str
    how: str = ""
    spans: Annotated[tuple[StartSpan, ...], msgspec.Meta(max_length=4 * MOST_ROW_SPANS)]
    """In order of time, without gaps but for one before the launcher was started."""
    first_step_s: float | None = None
    """None: it has not made one."""
    loaders: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)] = ()
    """Who loaded a checkpoint: torch.load, DCP, safetensors, robust-run."""
    read_bytes: int = -1
    """What its process had read from disks when it had made its first step; -1: not known."""


class StartStraggler(msgspec.Struct, frozen=True, array_like=True):
    """A node, or one rank of it, that took longer than the others for a phase."""

    node: str
    rank: int
    """-1: all of its ranks."""
    seconds: float


class PhaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One phase over all ranks."""

    phase: Phase
    median_s: float
    p90_s: float
    longest_s: float
    node: str
    """Where it took longest."""
    rank: int
    stragglers: Annotated[tuple[StartStraggler, ...], msgspec.Meta(max_length=MOST_STRAGGLERS)] = ()
    straggler_count: int = 0


class AttemptStartup(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt's start."""

    attempt: int
    began_unix_s: float
    ranks: int
    """Of the attempt."""
    nodes: int
    seen_ranks: int
    """Those that anything is known of."""
    stepped_ranks: int
    complete: bool
    """Nothing of it is still to come."""
    total_s: float
    """Until the first step of the last rank; while there is none, until it was looked at."""
    phases: Annotated[tuple[PhaseSummary, ...], msgspec.Meta(max_length=len(PHASES))]
    critical: RankRow | None = None
    """The rank that had most to do before its first step: what the others waited for."""
    rows: Annotated[tuple[RankRow, ...], msgspec.Meta(max_length=ALL_RANKS)] = ()
    """All ranks, or the slowest."""
    node_rows: Annotated[tuple[RankRow, ...], msgspec.Meta(max_length=ALL_NODES)] = ()
    """Of several nodes, the last rank of each, or of the slowest."""
    other_nodes: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_NAMES)] = ()
    """Names of the nodes that have no row. Empty, too, where older versions left them out, or there are more."""
    fetched: Annotated[tuple[FetchRow, ...], msgspec.Meta(max_length=ALL_NODES)] = ()
    """What nodes fetched beside it, those that took longest."""
    uses: Annotated[tuple[str, ...], msgspec.Meta(max_length=32)] = ()
    how: Annotated[tuple[tuple[str, int], ...], msgspec.Meta(max_length=8)] = ()
    """How many workers were started which way."""

    def uses_any(self, *names: str) -> bool:
        """Whether one of these is in use."""
        return any(name in self.uses for name in names)


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """startup.json."""

    schema: int = SCHEMA
    run_id: str
    attempts: Annotated[tuple[AttemptStartup, ...], msgspec.Meta(max_length=MOST_ATTEMPTS)] = ()
    """Oldest first."""


class SchedulerQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler says of the time before a job's launcher was started; Unix times."""

    eligible_unix_s: float
    """When the job could have been started first."""
    started_unix_s: float
    is_batch: bool = False
    """A script ran from then on, as far as the launcher."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would make the next start shorter."""

    what: str
    """What to type or to change."""
    why: str
    saves_s: float
    """An estimate."""
