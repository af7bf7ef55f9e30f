"""The words of the ladder: what it is told, what it decides, what it remembers. No behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.checks.replay import Conclusion
from robust_run.health.checks.types import CheckJudgement, CheckName
from robust_run.health.ladder.cover import TimeLost

Rung = Literal["diagnose", "evict", "reattempt", "rollback", "swap", "replay", "stop", "settled"]
"""evict, reattempt, rollback, swap: a new attempt follows at once: without nodes, as before, with earlier code, with a standby
in the place of a node. diagnose, replay: the
ladder waits for what comes of it. settled: the job got further, and an episode is over."""

SwapWhen = Literal["", "rather", "now", "last"]
"""When a standby is to take the place of the node that failed. rather: before replay and stop. now: at once. last: the job ends
else. Empty: not."""

FailureKind = Literal["crash", "nan", "hang", "unknown", "health", "jump", "slow"]
"""health, jump, slow: the job trained, and was suspended so that its nodes can be checked."""

#: The job was suspended for these, it did not fail: where checks find nothing it goes on, and no other rung is climbed.
SUSPENDED: frozenset[FailureKind] = frozenset(("health", "jump", "slow"))


class LadderPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed."""

    max_evict_share: float = 0.1
    """Of the nodes of a job, in one episode; one node is always allowed, unless it is 0."""
    evicted_before: int = 0
    """How many of these other rules have evicted."""
    spare: int | None = None
    """How many nodes the job can lose and still go on at once; None: as many as may be evicted."""
    time_lost: TimeLost = TimeLost(find_s=None, standbys_s=None, mtbf_s=3600.0, failure_s=300.0)
    """What is weighed where more nodes are suspect than others can take over for."""
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
    sign: str = ""
    """health: name of what a sensor said."""
    suspect: bool = False
    """It came on nodes that are suspect for what was before."""
    worst_first: tuple[str, ...] = ()
    """Nodes that anything is held against, by how much."""
    swap: SwapWhen = ""
    swap_of: str = ""
    """The node whose place a standby can take."""
    outstanding: str = ""
    """The one of the nodes to blame that is suspect again and again and stands out from all others; empty: none."""


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
    """evict, swap: these."""
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
    def is_climbing(self) -> bool:
        """Whether a failure now is the same trouble again: what helps next is the next rung."""
        if not self.decisions or self.rungs[-1] == "stop":
            return False
        was_suspended = self.failure is not None and self.failure.kind in SUSPENDED
        return not (was_suspended and self.rungs[-1] in ("evict", "reattempt"))

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Return what was tried in this episode."""
        return tuple(decision.rung for decision in self.decisions)
