"""The words of a job of several roles: what is asked for, what happens, what is done. No behaviour.

A **role** is what some workers of the job do: trainer, rollout. It has one or more **members**. A member is a world of its own,
a job as the launcher knows it: ranks, a store, attempts, its own run directory. Members of a role run the same command; a member
that comes back has the same name, `rollout/3`, and a higher **generation**. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.model.code_events import CodeVersion
from robust_run.orchestrator.model.demand_words import Measured
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import MANY
from robust_run.orchestrator.model.update_words import (
    CodeFate,
    CodeLost,
    CodeSeen,
    TakeBackAsked,
    UpdateAsked,
    UpdateMember,
)

# What happens.


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """The job begins: all nodes are here."""

    patience_s: float | None = None
    """So long a role that no node is left for is waited for; None: nodes come back, it is waited for ever."""


class JobStarted(msgspec.Struct, frozen=True, kw_only=True, tag="job_started"):
    """The job was started, for the first time or again: nothing of an earlier start runs. A leader that is started again by its
    guard is no such start.
    """

    start: str
    """Random, another one each time."""


class NodeOffered(msgspec.Struct, frozen=True, kw_only=True, tag="node_offered"):
    """A node can run members."""

    node: str
    slots: int
    """So many workers fit, of all roles together."""
    devices: int = 0
    cpus: int = MANY
    labels: tuple[str, ...] = ()
    guard: str = ""
    """Which process starts its launchers: another one there knows nothing of those of this."""


class NodeGone(msgspec.Struct, frozen=True, kw_only=True, tag="node_gone"):
    """A node is lost or has left: nothing of its members can run any more."""

    node: str
    why: str = ""
    was_told: bool = False
    """It left because somebody told it to, and said so: no failure of what ran on it."""


class NodeLeads(msgspec.Struct, frozen=True, kw_only=True, tag="node_leads"):
    """A process leads the job on, where another may have done so on another node. Times before this are of that one's clock."""

    node: str
    term: int = 0


class WorldRuns(msgspec.Struct, frozen=True, kw_only=True, tag="world_runs"):
    """All workers of a member run. `attempt` counts within one launcher; `serial` is that of `StartMember`."""

    member: MemberName
    serial: int
    attempt: int = 0


class WorldFailed(msgspec.Struct, frozen=True, kw_only=True, tag="world_failed"):
    """An attempt of a member failed; its launcher is about to heal it."""

    member: MemberName
    serial: int
    attempt: int = 0
    """Which one failed: the next may run already when this is told."""
    sentence: str = ""
    was_asked: bool = False
    """Nothing was at fault: people asked for another start, or for other code."""


class WorldEnded(msgspec.Struct, frozen=True, kw_only=True, tag="world_ended"):
    """A member's launcher has ended, and nothing of it runs."""

    member: MemberName
    serial: int
    code: int
    """As `subprocess` gives it."""
    sentence: str = ""
    """Its last word: why."""


class RankReady(msgspec.Struct, frozen=True, kw_only=True, tag="rank_ready"):
    """A rank has called `ready()`."""

    member: MemberName
    serial: int
    rank: int
    attempt: int
    address: str = ""


class RankGone(msgspec.Struct, frozen=True, kw_only=True, tag="rank_gone"):
    """The process of a rank has hung up: it has ended, or is about to come back."""

    member: MemberName
    serial: int
    rank: int
    attempt: int


class RankEnded(msgspec.Struct, frozen=True, kw_only=True, tag="rank_ended"):
    """The process of a rank has ended, says its launcher."""

    member: MemberName
    serial: int
    rank: int
    attempt: int


class RankStopped(msgspec.Struct, frozen=True, kw_only=True, tag="rank_stopped"):
    """The process of a rank is stopped (SIGSTOP), and has been for a while; told anew while it is. Never in the journal."""

    member: MemberName
    serial: int
    rank: int
    attempt: int
    for_s: float

    @property
    def worker(self) -> str:
        """Its name at queues."""
        return f"{self.member}:{self.rank}"


class RankHeldUp(msgspec.Struct, frozen=True, kw_only=True, tag="rank_held_up"):
    """The process of a rank is stopped, alone of all, and others wait for it."""

    member: MemberName
    serial: int
    rank: int
    attempt: int
    for_s: float


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="asked"):
    """Somebody asks for something. stop: the job is to end. scale: a role is to have so many members."""

    what: Literal["stop", "scale"]
    role: str = ""
    members: int = 0
    signal: int = 15
    by: str = ""


class Tick(msgspec.Struct, frozen=True, kw_only=True, tag="tick"):
    """Time has passed."""


Event = (
    Begun
    | JobStarted
    | NodeOffered
    | NodeGone
    | NodeLeads
    | WorldRuns
    | WorldFailed
    | WorldEnded
    | RankReady
    | RankGone
    | RankEnded
    | RankStopped
    | RankHeldUp
    | Asked
    | UpdateAsked
    | TakeBackAsked
    | CodeSeen
    | CodeFate
    | CodeLost
    | Measured
    | Tick
)

# What is done.


class StartMember(msgspec.Struct, frozen=True, kw_only=True, tag="start_member"):
    """Start a member's launcher on nodes."""

    member: MemberName
    serial: int
    """Counts the launchers of this member: what an earlier one still says is void."""
    nodes: tuple[str, ...]
    devices: tuple[int, ...] = ()
    """GPUs of the node it may use; empty: all."""
    code: CodeVersion | None = None
    """The version of its role's code that it starts with; None: what lies in the user's folder."""


class StopMember(msgspec.Struct, frozen=True, kw_only=True, tag="stop_member"):
    """End a member's launcher, in good order."""

    member: MemberName
    serial: int
    signal: int = 15


class RestartMember(msgspec.Struct, frozen=True, kw_only=True, tag="restart_member"):
    """Have a member's launcher end its attempt and start the next, as `robust restart` does."""

    member: MemberName
    serial: int
    reason: str


class Changed(msgspec.Struct, frozen=True, kw_only=True, tag="changed"):
    """What others know of a member has changed: it is told to those who listen."""

    member: MemberName


class SayLine(msgspec.Struct, frozen=True, kw_only=True, tag="say_line"):
    """Tell people."""

    text: str


class WakeAt(msgspec.Struct, frozen=True, kw_only=True, tag="wake_at"):
    """Tell the time then."""

    at_s: float


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """The job is over."""

    code: int
    sentence: str = ""
    is_short: bool = False
    """Too few nodes were left."""


Action = StartMember | StopMember | RestartMember | UpdateMember | Changed | SayLine | WakeAt | Finish


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: what happened, when, and what was decided."""

    at: float
    """Seconds since the epoch."""
    mono: float
    """Of the monotonic clock."""
    event: Event | None = None
    actions: tuple[Action, ...] = ()


def code_text(code: int) -> str:
    """Return an exit code in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def exit_code(code: int) -> int:
    """Return what a failed member's code is as the job's: never 0."""
    return 128 - code if code < 0 else (code or 1)
