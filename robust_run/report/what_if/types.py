"""The words of what-if. No behaviour.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025): a step is replayed from
what was measured, with some of it at its peers' median. A **stage** is a pipeline stage; ranks of a stage do the same work.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal[
    "forward", "backward", "forward_send", "forward_recv", "backward_send", "backward_recv", "params_sync", "grads_sync"
]
COMPUTE: tuple[Kind, ...] = ("forward", "backward")
SYNC: tuple[Kind, ...] = ("params_sync", "grads_sync")
#: What is sent with which other end: each pair is one transfer to the next stage, or back.
PAIRS: dict[Kind, Kind] = {"forward_send": "forward_recv", "backward_send": "backward_recv"}


class TracedOp(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work of one rank in one step."""

    dp: int
    """Which of the ranks of its stage: its data-parallel rank."""
    stage: int
    step: int
    kind: Kind
    start_s: float
    duration_s: float
    microbatch: int = 0
    """-1 for what is done once in a step."""

    @property
    def end_s(self) -> float:
        """When it was over."""
        return self.start_s + self.duration_s


class OneFixed(msgspec.Struct, frozen=True, kw_only=True):
    """A step with one thing at its peers' median."""

    what: str
    """`rank 5`, `dp 1 stage 2`, `stage 3`, `backward`."""
    step_s: float
    """How long a step would take, on average."""
    ratio: float
    """Its own work against the median of its peers'; 1.0 where that is not the point (kinds of work)."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Seconds are means over steps."""

    source: str
    """`steps`: lengths of steps alone, by rank. `operations`: a trace of forward, backward and transfers by microbatch."""
    steps: int
    workers: int
    stages: int
    step_s: float
    """As it is; for operations: as they replay."""
    ideal_s: float
    """If all ranks, stages and transfers were as their peers."""
    measured_s: float
    """As it was measured; differs from `step_s` by what the replay does not know."""
    left_out: int = 0
    """Steps that were left out: seldom and much longer than the others."""
    ranks: tuple[OneFixed, ...] = ()
    """Each at the median of the ranks of its stage, those that matter most first."""
    stage_rows: tuple[OneFixed, ...] = ()
    """Each stage at the median of the stages, in order: imbalance of the model's parts, no fault of their ranks."""
    kinds: tuple[OneFixed, ...] = ()
    """Each kind of work at the median of all of it."""
    slowest_share: float = 0.0
    """What of the slowdown goes if the slowest 3 % of the ranks (at least one) are as their peers (the paper's M_W)."""
    last_stage_share: float = 0.0
    """What of it goes if the last stage is as the others (M_S)."""

    @property
    def slowdown(self) -> float:
        """How many times as long as the ideal step a step takes (the paper's S)."""
        return self.step_s / self.ideal_s if self.ideal_s > 0 else 1.0
