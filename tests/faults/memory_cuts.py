"""Power cuts of nodes that keep checkpoints in memory, and deaths in a save: schedules from a seed, and what each may cost.

    schedule = drawn(random.Random("7/3"))
    problem = judge(cut, Followed(reached=41, began=40, source="peer", stored_before=20, stored_after=40))

`memory_cuts_job.py` carries a schedule out. Four ranks train on two or four nodes, two more hosts stand by; a host that lost its
power comes back as a standby before the next cut.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

RANKS = 4
NODES = (2, 4)
SPARE = 2
"""Hosts that stand by: as many as are ever lost at once."""
STEP_S = 0.2
"""How long a step takes: a copy of so small a state fits into it."""
FEWEST, MOST = 2, 4
"""Cuts of one schedule."""
STEPS = (4, 14)
"""A cut comes so many steps after copies go where they belong."""

ACTS = ("power", "kill", "pair", "apart")
"""`power`: a node. `kill`: a rank, with SIGKILL, in a save or just after it. `pair`: a node and the one that has its copies, so
that storage is all there is. `apart`: two nodes, neither of which has the other's copies (of four nodes)."""
_CHANCES = (6, 4, 3, 2)
MOST_LOST = 1
"""Steps that are made again where memory, or a copy of it, is left."""
CALM_S = 2 * STEP_S
CALM_LOAD = 6.0
"""Where a step takes longer than this, or so many processes want each core, the machine may be too busy for a copy of a step."""


@dataclass(frozen=True)
class Cut:
    """Something that takes memory away."""

    act: str
    place: int
    """Of the node in the world that runs then, or a rank; it is counted round."""
    steps: int
    within: float
    """At which part of a step, or of a save."""

    @property
    def name(self) -> str:
        """For people."""
        who = f"rank {self.place}" if self.act == "kill" else f"node {self.place}"
        return f"{self.act} at {who} after {self.steps}+{self.within:.2f} steps"


@dataclass(frozen=True)
class Schedule:
    """All cuts of one job."""

    nodes: int
    cuts: tuple[Cut, ...]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.nodes} nodes: " + "; ".join(cut.name for cut in self.cuts)


@dataclass(frozen=True)
class Followed:
    """What came after a cut."""

    reached: int
    """The newest step that a rank had made: its save had returned."""
    began: int
    """The step that the next attempt which trains started from."""
    source: str
    """Where that was from, as it is in the journal."""
    stored_before: int
    stored_after: int
    """The newest step that storage had just before the cut, and just before training went on; 0: none."""
    slowest_s: float = STEP_S
    """How long the longest of the last steps before the cut took."""
    load: float = 0.0
    """How many processes wanted each core, on the average of a minute."""
    stride: int = 1
    """Of so many steps one was copied: the longest stride that a node said it needs, for a copy had taken longer than a step."""
    in_save: bool = False
    """Whether a rank that was killed died before its save returned."""

    @property
    def lost(self) -> int:
        """How many steps are made again."""
        return max(0, self.reached - self.began)

    @property
    def most(self) -> int:
        """How many may be: from the last that was copied, where a copy fits into a step; else from the one before that."""
        return MOST_LOST if self.stride == 1 else 2 * self.stride

    @property
    def is_calm(self) -> bool:
        """Whether a copy had the time that a step should take."""
        return self.slowest_s <= CALM_S and self.load <= CALM_LOAD


def drawn(chance: random.Random) -> Schedule:
    """Draw a schedule."""
    nodes = chance.choice(NODES)
    return Schedule(nodes, tuple(_cut(chance, nodes) for _ in range(chance.randint(FEWEST, MOST))))


def _cut(chance: random.Random, nodes: int) -> Cut:
    (act,) = chance.choices(ACTS, _CHANCES)
    if act == "apart" and nodes < max(NODES):  # two nodes are always a pair
        act = "pair"
    place = chance.randrange(RANKS if act == "kill" else nodes)
    return Cut(act, place, chance.randint(*STEPS), round(chance.random(), 2))


def judge(cut: Cut, followed: Followed) -> str:
    """Return what was wrong with what followed; empty: nothing."""
    said = (
        f"{cut.name}: step {followed.reached} was reached, and training began at step {followed.began} "
        f"from {followed.source or 'nothing'}"
    )
    if followed.began > followed.reached + 1:  # all ranks may have one more in memory, whose save did not return
        return f"{said}, which nobody had made"
    if cut.act == "pair":
        if followed.source != "storage":
            return f"{said}, and nobody had a copy"
        at_least, at_most = followed.stored_before, followed.stored_after
        return "" if at_least <= followed.began <= at_most else f"{said}; storage had step {at_least} to {at_most}"
    if followed.lost > followed.most and followed.is_calm:
        return f"{said}: {followed.lost} steps are made again, at most {followed.most} may be"
    return ""


def victims(cut: Cut, world: list[str], copies: dict[str, str]) -> tuple[str, ...]:
    """Return the names of the hosts that lose their power. `copies`: by host, which one has copies of what it keeps."""
    first = world[cut.place % len(world)]
    if cut.act == "power":
        return (first,)
    if cut.act == "pair":
        return (first, copies[first])
    if cut.act == "apart":
        others = [name for name in world if name not in (first, copies[first]) and copies[name] != first]
        return (first, others[0]) if others else (first,)
    return ()
