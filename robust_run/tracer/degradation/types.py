"""The words of degradation: how fast a job was and is, what was seen on its nodes, what came of it. No behaviour but arithmetic.

Thresholds are of the job's own past: a job is compared with itself, so what it always does (uneven data, checkpoints, evaluation)
is part of what is usual. They were not fitted to the model of the tests, which knows none of them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SLOWER = 1.15
"""A job is slower whose steps take so many times what they took,"""
SPREADS = 4.0
"""and longer than that by so many deviations of what they took,"""
ROUNDS, ROUNDS_SLOW = 5, 4
"""in so many rounds, of which so many (the newest among them) were slow."""
VAGUE_ROUNDS = 12
"""So many of them, where communication takes longer and no sensor says why: others' traffic comes and goes."""
AGAIN_S = 1800.0
"""The same is not told again before: what comes in bursts is told once."""
LEAST_PAST = 12
"""Rounds that must be known from before."""
SETTLE = 3
"""First rounds of an attempt that say nothing: caches fill, kernels are compiled, memory is allocated."""
BLOCK = 5
"""Rounds that are kept as one."""
PAST_BLOCKS = 6
"""Of the newest past: five minutes."""
DRIFTED = 1.10
"""Steps have drifted that take so many times what they took in the first minutes,"""
DRIFT_BLOCKS = 24
"""over so many blocks at least (20 minutes), each third of them slower than the one before."""
LEAST_STEPS = 3
"""Fewer new steps in a round are left for the next."""
OWN_PART = 0.4
"""A rank is slower by itself whose own work has grown by this part of what the step has grown by."""
NEARLY_ALL = 0.8
"""Of the ranks: then it is no matter of single ones."""
MOST_OF_NODE = 7 / 8
OVER = 1.07
"""It is over when steps take less than so many times what they took."""
IMBALANCED, IMBALANCE_COST = 1.15, 0.05
"""A stage has more work than the others whose ranks need so many times as long, and without whose excess a step would be shorter
by this share."""
STANDING_S, STANDING_STEPS = 15.0, 20.0
"""A job stands that has made no step for so long, and for as long as so many of its steps take."""
BLIND = 0.03
"""Hosts of GPUs see nothing of who waits for whom: where all ranks wait for less than this share of a step, none stands out."""
PLANNED = 1.10
"""Steps are slower than planned that take so many times what was planned."""
FAR_FROM_PEERS = 1.3
"""A rank that needs so many times as long as its peers may be acted on, if a sensor says why."""
MOST_TOLD = 12
"""Times that something is told in an attempt."""

Kind = Literal["rank", "node", "stage", "group", "all", "plan"]
"""Where it is: single ranks, whole nodes, a pipeline stage, communication, all ranks alike; or steps were never as planned."""
Cause = Literal[
    "",
    "cpu_limit",
    "cpu_busy",
    "neighbour",
    "gpu_clock",
    "pcie",
    "memory",
    "disk",
    "storage",
    "network",
    "fabric",
    "data",
    "work",
]
"""What a sensor or the times themselves say of why; empty: nothing does. `fabric`: the network lost what nodes sent, which blames
none of them. `work`: a stage has more of it than the others."""


class Seen(msgspec.Struct, frozen=True):
    """Something on a node that may be why its ranks are slow."""

    node: str
    cause: Cause
    words: str
    """A clause: `the CPU limit of their cgroup holds ranks back 81 % of the time`."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How long a node has made no step, as it says itself."""

    since_step_s: float | None = None
    """Since its newest step; None: it has made none."""
    waiting_s: float | None = None
    """How long one of its ranks has been waiting for peers; None: none waits."""


class Sample(msgspec.Struct, frozen=True):
    """How fast a job was in one round, or in several that are kept as one. Rows are in the order of ranks."""

    at_s: float
    step_ms: float
    """Median length of a step."""
    own_ms: tuple[float, ...]
    """Of each rank, without what it waited for peers: a median."""
    data_ms: tuple[float, ...]
    """What of that it waited for data; zeros where that is not known."""


class Cost(msgspec.Struct, frozen=True):
    """What it costs while it lasts."""

    step_ms: float
    usual_ms: float
    ranks: int
    on_gpus: bool = False

    @property
    def lost(self) -> float:
        """The share of throughput that is lost."""
        return max(0.0, 1.0 - self.usual_ms / self.step_ms) if self.step_ms > 0 else 0.0

    @property
    def hours_per_day(self) -> float:
        """Hours of GPUs, or of ranks, that are spent for nothing each day."""
        return 24.0 * self.ranks * self.lost


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is slower than it was: where, why, since when, and what it costs."""

    kind: Kind
    is_drift: bool = False
    """It came slowly."""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    """At fault; empty where no node is."""
    stage: int | None = None
    group: str = ""
    """The group whose communication is slow, where one is known."""
    cause: Cause = ""
    seen: tuple[Seen, ...] = ()
    """What of all that was seen speaks for it."""
    cost: Cost
    since_s: float
    own_ms: tuple[float, float] = (0.0, 0.0)
    """Own work of the ranks at fault, before and now; of a stage: of the other stages, and its own."""
    data_ms: tuple[float, float] = (0.0, 0.0)
    """What of it they waited for data."""
    far_from_peers: bool = False
    """They need much longer than ranks that do the same work."""
    is_blind: bool = False
    """Hosts cannot tell who waits for whom: only what sensors saw names a node."""
    is_standing: bool = False
    """No step is made at all."""
