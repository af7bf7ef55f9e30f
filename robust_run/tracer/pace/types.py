"""The words of pace: how long the steps of each rank took, and which ranks stand out. No behaviour but arithmetic.

ByteRobust (SOSP 2025, §5.1) repeats a look every 10 s and evicts what was flagged most in 5 rounds; the thresholds within a
round are those of our own measurements: a mean over the round would accuse rank 0 of its checkpoints, so steps are counted.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

ROUND_S = 10.0
"""Length of a round; longer where steps are so slow that `STEPS_NEEDED` do not fit."""
ROUNDS_NEEDED = 5
MISSES_ALLOWED = 1
"""Of the rounds needed, but never the newest."""
STEPS_NEEDED = 20
"""That all ranks of a stage have made, in a round."""
MOST_STEPS = 64
"""Of a rank in a round; the limit on the wire."""
LARGEST_STRIDE = 1 << 20
"""Of steps that are timed on the GPU; a power of two."""
SLOW_RATIO = 1.3
"""A step is slow whose own time is more than so many times the median of the peers'."""
SLOW_EXCESS = 0.1
"""And exceeds it by more than this share of the step."""
SLOW_SHARE = 0.2
"""A rank is suspect that is slow in at least this share of the steps."""
SPREADS = 4.0
"""And in more steps than is usual among its peers, by so many standard deviations: uneven data makes every rank slow at times."""
LEAST_COST = 0.03
"""And without whose excess the steps would be shorter by at least this share."""
FAR_AHEAD = 2.0
"""Over all rounds together, a slow rank is slow so many times as often as any rank beside it that is not at fault."""
STEADINESS = 6.0
"""And its surplus of slow steps is so many standard errors above nothing, taken from how much it varies between rounds: what
comes in bursts (neighbours on the machine, data sorted by length) needs more rounds, or is no fault."""

_Times = Annotated[tuple[float, ...], msgspec.Meta(max_length=MOST_STEPS)]


class RankPace(msgspec.Struct, frozen=True, array_like=True):
    """How long consecutive steps of one rank took, in milliseconds. Both rows are equally long; others are not looked at."""

    rank: int
    node: str
    """Name of its host."""
    first_step: int
    """Number of the step that the rows begin with; the same on all ranks for the same step of the program."""
    own_ms: _Times
    """Length of the step without what the main thread was blocked waiting for peers."""
    step_ms: _Times
    """Length of the step."""
    data_ms: _Times = ()
    """What of its own time the main thread waited for its DataLoader; empty: it has none, or an older version says nothing."""


class TimedPace(msgspec.Struct, frozen=True, array_like=True):
    """The same as the GPU's own clock has it, of one in `stride` steps: those whose number is a multiple of it.

    On GPUs calls return at once, so what the host sees of a rank's own time is no use: it is the same on all ranks.
    """

    rank: int
    node: str
    first_step: int
    stride: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_STRIDE)]
    own_ms: _Times
    """Of the GPU, without what its stream waited for peers."""
    step_ms: _Times


class NodePace(msgspec.Struct, frozen=True, array_like=True):
    """What the agent of one node says once in a round."""

    attempt: int
    node: str
    began_s: float
    ended_s: float
    """The round, in monotonic time."""
    ranks: Annotated[tuple[RankPace, ...], msgspec.Meta(max_length=1024)]
    """Those of its ranks that made steps."""
    timed: Annotated[tuple[TimedPace, ...], msgspec.Meta(max_length=1024)] = ()
    """Those of them whose steps are timed on the GPU."""


class CpuShort(msgspec.Struct, frozen=True, array_like=True):
    """How short CPU time was on a node in a round."""

    held_share: float = 0.0
    """Of the round in which the CPU limit of the ranks' cgroup held them back."""
    pressure_percent: float = 0.0
    """Of the last ten seconds in which some work of the node waited for a CPU."""


class Reported(msgspec.Struct, frozen=True, array_like=True):
    """What a script says of its throughput with `robust_run.report`."""

    tokens_per_s: float | None = None
    planned_tokens_per_s: float | None = None
    planned_step_s: float | None = None


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that stood out in a round. Times are medians over its slow steps."""

    rank: int
    node: str
    slow_steps: int
    steps: int
    own_ms: float
    peers_ms: float
    """Median of the peers in the same steps."""
    usual_share: float = 0.0
    """Lower median of the shares of slow steps among the ranks of its stage."""
    peers: tuple[int, ...]
    """All ranks of its stage, itself among them."""
    since_s: float
    """When its first slow step of this round began, estimated from the lengths of the steps."""

    @property
    def ratio(self) -> float:
        """How many times as long as its peers it needs."""
        return self.own_ms / max(self.peers_ms, 1e-3)

    @property
    def share(self) -> float:
        """In which share of the steps it is slow."""
        return self.slow_steps / self.steps


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one round."""

    attempt: int
    began_s: float
    ended_s: float
    through_step: int = 0
    """The newest step that was judged: the next round begins after it."""
    steps: int = 0
    """That were judged; 0: too few yet, the round does not count."""
    suspects: tuple[SlowRank, ...] = ()
    shares: tuple[tuple[int, float], ...] = ()
    """Of all judged ranks: in which share of the steps they were slow."""
    node_ranks: tuple[tuple[str, int], ...] = ()
    """How many judged ranks each node has, by name."""
    step_ms: float = 0.0
    """Mean length of the judged steps."""
    lost_ms: float = 0.0
    """By how much the suspects make the mean step longer."""
    timed: bool = False
    """Own times of all of it are of the GPUs' clocks."""
    reason: str = ""
    """Why no rank is suspect, where one nearly was, or why the round does not count."""
