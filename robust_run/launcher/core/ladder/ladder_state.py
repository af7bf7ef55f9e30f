"""State of the recovery ladder between two events, packed into the job's state. No behaviour.

It is kept packed (`JobState.ladder_state`): a job in which nothing goes wrong never imports any of this.
"""

from __future__ import annotations

import msgspec

from robust_run.health.checks.replay import Replay, ReplayGroup
from robust_run.health.ladder.suspicion import Suspicion, from_now
from robust_run.health.ladder.types import State
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import ResumePoint


class GroupRun(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a pass of a replay: an attempt of its own, with a number, a store and a world of its own."""

    group: ReplayGroup
    attempt: int
    layout: tuple[Placement, ...]
    address: str = ""
    port: int = 0
    """Where its store listens; 0: not open yet."""
    looks: str = ""
    """Folder of checkpoints that it starts from; empty: it is told of none."""
    resume: ResumePoint | None = None
    """Where it starts from; None: not chosen yet, or it is told of none."""
    live: tuple[int, ...] = ()
    """Ranks whose end has not been seen."""
    stepped: tuple[str, ...] = ()
    """Nodes whose ranks have made their steps."""
    outcome: str = ""
    """failed, passed; broken: it says nothing. Empty: it runs."""
    why: str = ""


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True):
    """A replay under way."""

    replay: Replay
    nodes: dict[str, str]
    """Agent by host name."""
    runs: tuple[GroupRun, ...] = ()
    """Of the pass under way."""
    steps: int
    """A group that made so many has passed; so has one that lived for `limit_s`."""
    limit_s: float
    given_up: str = ""
    """Why; empty: it goes on."""


class Repeat(msgspec.Struct, frozen=True):
    """Failures in a row on one host, as a machine may cause them."""

    count: int
    at_s: float
    """Of the newest."""


class SwapTest(msgspec.Struct, frozen=True, kw_only=True):
    """A standby took the place of a node that failed again."""

    node: str
    """The host that was set aside."""
    ranks: tuple[int, ...]
    at_s: float
    goes_along: bool = False
    """They failed on the standby, too: it is no node's fault."""


class LadderState(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    ladder: State = State()
    crashed: str = ""
    """How the attempt before crashed, where nothing explained it: `signal`, `device`, `peers`; empty: it did not."""
    evicted: tuple[str, ...] = ()
    """Hosts that were evicted for the failure before, without a diagnosis."""
    exit_code: int = 1
    """What the job exits with if the ladder ends it."""
    replay: ReplayRun | None = None
    suspicions: dict[str, Suspicion] = {}
    """What is held against nodes, by host name."""
    suspended_at: dict[str, float] = {}
    """When the job was suspended to be checked, by what was seen and where."""
    repeats: dict[str, Repeat] = {}
    """By host name."""
    tests: tuple[SwapTest, ...] = ()
    """Newest last."""
    answer: str = ""
    """What a test has shown of the newest failure; empty: it is no answer to any."""


def ladder_state_of(state: JobState) -> LadderState:
    """Return what the ladder remembers."""
    return msgspec.json.decode(state.ladder_state, type=LadderState) if state.ladder_state else LadderState()


def remember(state: JobState, ladder_state: LadderState) -> None:
    """Keep it."""
    state.ladder_state = msgspec.json.encode(ladder_state) if ladder_state != LadderState() else b""


def forget(state: JobState, name: str) -> None:
    """A host was mended, or is out: nothing is held against it."""
    ladder_state = ladder_state_of(state)
    if name in ladder_state.suspicions or name in ladder_state.repeats:
        suspicions = {host: one for host, one in ladder_state.suspicions.items() if host != name}
        repeats = {host: one for host, one in ladder_state.repeats.items() if host != name}
        remember(state, msgspec.structs.replace(ladder_state, suspicions=suspicions, repeats=repeats))


def resumed(state: JobState, now_s: float) -> None:
    """This clock is another: how much time went by is not known, so none did."""
    ladder_state = ladder_state_of(state)
    suspicions = from_now(ladder_state.suspicions, now_s)
    suspended_at = dict.fromkeys(ladder_state.suspended_at, now_s)
    repeats = {name: Repeat(one.count, now_s) for name, one in ladder_state.repeats.items()}
    tests = tuple(msgspec.structs.replace(each, at_s=now_s) for each in ladder_state.tests)
    after = msgspec.structs.replace(
        ladder_state, suspicions=suspicions, suspended_at=suspended_at, repeats=repeats, tests=tests
    )
    remember(state, after)
