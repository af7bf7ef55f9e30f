"""A bulk-synchronous job, simulated: every rank works, then waits for the slowest. It makes the step marks of its ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from robust_run.tracer.pace.measure import pace_of, timed_pace_of
from robust_run.tracer.pace.rounds import Rounds
from robust_run.tracer.pace.types import MOST_STEPS, NodePace
from robust_run.tracer.types import Group, StepMark, StepPhases

Work = Callable[[int, int, random.Random], float]
"""(rank, step, random) -> milliseconds of own work."""


def steady(rank: int, step: int, chance: random.Random) -> float:
    """50 ms with the noise of a quiet machine."""
    return 50.0 * chance.lognormvariate(0.0, 0.05)


@dataclass
class Job:
    """A job whose rounds are of `steps` steps each.

    `on_gpus`: calls return at once, so hosts see no waiting at all; the GPUs of `timed` (None: of all) time one in `stride`
    steps, and are two steps behind.
    """

    world: int
    work: Work
    per_node: int = 4
    steps: int = MOST_STEPS
    communication_ms: float = 10.0
    groups: Sequence[Group] = ()
    p2p_pairs: Collection[tuple[int, int]] = ()
    seed: int = 0
    step: int = 1
    on_gpus: bool = False
    timed: Collection[int] | None = None
    stride: int = 1
    marks: list[list[StepMark]] = field(default_factory=list)
    phases: list[list[StepPhases]] = field(default_factory=list)
    began_s: float = 100.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.marks = [[StepMark(100.0, 0.0)] for _ in range(self.world)]
        self.phases = [[] for _ in range(self.world)]
        self.groups = self.groups or (Group(name="0", ranks=tuple(range(self.world))),)

    def advance(self) -> None:
        """Make the steps of one round."""
        self.began_s = self.marks[0][-1].at_s
        for _ in range(self.steps):
            self.step += 1
            own = [self.work(rank, self.step, self.chance) for rank in range(self.world)]
            length = max(own) + self.communication_ms
            for rank, mine in enumerate(own):
                last = self.marks[rank][-1]
                blocked = 0.0 if self.on_gpus else (length - mine) / 1e3
                self.marks[rank].append(StepMark(last.at_s + length / 1e3, last.blocked_s + blocked))
                if self.on_gpus and self.step % self.stride == 0:
                    at_s, waited = last.at_s + length / 1e3, length - mine
                    self.phases[rank].append(
                        StepPhases(self.step, at_s, mine * 0.3, 0.0, mine * 0.6, waited * 0.9, mine * 0.1, waited * 0.1)
                    )
        self.marks = [marks[-MOST_STEPS - 1 :] for marks in self.marks]
        self.phases = [phases[-1024:] for phases in self.phases]

    def paces(self) -> list[NodePace]:
        """Return what the agents say at the end of a round."""
        said = []
        for first in range(0, self.world, self.per_node):
            node = f"gpu-{first // self.per_node:02d}"
            known = [
                pace_of(self.marks[rank], self.step, rank=rank, node=node)
                for rank in range(first, min(first + self.per_node, self.world))
            ]
            ended = self.marks[first][-1].at_s
            timed = [
                timed_pace_of(self.phases[rank][:-2], rank=rank, node=node, round_s=ended - self.began_s)
                for rank in range(first, min(first + self.per_node, self.world))
                if self.timed is None or rank in self.timed
            ]
            paces = tuple(pace for pace in known if pace)
            said.append(NodePace(1, node, ended - 10.0, ended, paces, tuple(pace for pace in timed if pace)))
        return said

    def run(self, rounds: int, known: Rounds | None = None) -> Rounds:
        """Return what is known after so many rounds."""
        known = known or Rounds()
        for _ in range(rounds):
            self.advance()
            known = known.hear(self.paces(), self.groups, self.p2p_pairs)
        return known


def verdicts(job: Job, rounds: int) -> int:
    """Return how often a verdict would have been spoken at the end of a round."""
    known, spoken = Rounds(), 0
    for _ in range(rounds):
        known = job.run(1, known)
        spoken += known.verdict() is not None
    return spoken
