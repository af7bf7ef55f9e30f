"""The words of the ladder: what it is told, what it decides, what it remembers. No behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.checks.replay import Conclusion
from robust_run.health.checks.types import CheckJudgement, CheckName

Rung = Literal["diagnose", "evict", "reattempt", "rollback", "replay", "stop", "settled"]
"""evict, reattempt, rollback: a new attempt follows at once: without nodes, as before, with earlier code. diagnose, replay: the
ladder waits for what comes of it. settled: the job got further, and an episode is over."""

FailureKind = Literal["crash", "nan", "hang", "unknown"]


class LadderPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed."""

    max_evict_share: float = 0.1
    """Of the nodes of a job, in one episode; one node is always allowed, unless it is 0."""
    evicted_before: int = 0
    """How many of these other rules have evicted."""
    may_evict: bool = True
    """There are other nodes."""
    may_roll_back: bool = True
    may_replay: bool = True
    why_no_replay: str = "it is switched off"
    replay_unit: int = 1
    """Nodes that one replica of the model needs."""
    seconds: float = 3.0
    """How long each check measures."""
    nan_seconds: float = 30.0
    """Likewise where numbers went wrong: what corrupts them comes and goes."""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the versions of the job's code."""

    running: str = ""
    last_good: str = ""
    """The newest that made progress; empty: none did, or none is kept."""


# --- what it is told --------------------------------------------------------------------------------------------------


class Failed(msgspec.Struct, frozen=True, tag="failed", kw_only=True):
    """An attempt ended, and no rule that looks at running jobs explains it, or what such a rule did was in vain."""

    at_s: float
    kind: FailureKind
    sentence: str
    """The verdict on the attempt."""
    nodes: tuple[str, ...]
    """That it ran on."""
    code: Code = Code()
    evicted_before: tuple[str, ...] = ()
    """Nodes that were evicted for the failure before this one, without a diagnosis."""


class Diagnosed(msgspec.Struct, frozen=True, tag="diagnosed", kw_only=True):
    """Checks are over."""

    at_s: float
    judgement: CheckJudgement


class RollbackRefused(msgspec.Struct, frozen=True, tag="rollback_refused", kw_only=True):
    """The earlier code could not be put back."""

    at_s: float
    reason: str


class Replayed(msgspec.Struct, frozen=True, tag="replayed", kw_only=True):
    """A replay is over."""

    at_s: float
    conclusion: Conclusion


class Settled(msgspec.Struct, frozen=True, tag="settled", kw_only=True):
    """The attempt got further than where the job failed."""

    at_s: float


Event = Failed | Diagnosed | RollbackRefused | Replayed | Settled

# --- what it decides and remembers ------------------------------------------------------------------------------------


class LadderDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and why: to be kept in the journal."""

    number: int
    """Counts decisions of a job, from 1."""
    episode: int
    """Failures in a row without progress are one episode; from 1."""
    at_s: float
    rung: Rung
    rule: str
    """See `rules.RULES`."""
    sentence: str
    nodes: tuple[str, ...] = ()
    """evict: these."""
    over_evicted: tuple[str, ...] = ()
    """Those of them that are evicted only because it is not known which one is at fault."""
    checks: tuple[CheckName, ...] = ()
    """diagnose: these; empty: all."""
    seconds: float = 0.0
    """diagnose: how long each check measures."""
    version: str = ""
    """rollback: to this."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the ladder knows between two events."""

    number: int = 0
    """Decisions so far."""
    episode: int = 0
    decisions: tuple[LadderDecision, ...] = ()
    """Of the episode under way; empty: none is."""
    failure: Failed | None = None
    """The newest of it."""
    evicted: tuple[str, ...] = ()
    """In it, by the ladder."""
    known: tuple[str, ...] = ()
    """What was found out in it, a sentence each."""

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Return what was tried in this episode."""
        return tuple(decision.rung for decision in self.decisions)
