"""A job's life, window after window, as its ranks' traces tell it: well at first, then a fault, or unusual but harmless things.

Steps are drawn from small stores of steps that were worked out once for each kind of condition, so a day of a job costs seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tracer.nccl.slow_ring import Side
from tracer.nccl.slow_world import (
    AtFault,
    Fault,
    FaultName,
    HarmlessName,
    Job,
    StepDone,
    Weather,
    at_fault,
    draw_fault,
    draw_job,
    far_job,
    step,
)

from robust_run.tracer.nccl.work import CommWork, FlowWork, RankWork

#: Steps of each kind that are worked out.
STORED = 24
#: Nodes look at their ranks at moments that are so far apart at the most.
MOST_SKEW_S = 0.2


@dataclass
class Part:
    """A collective of one step, once."""

    ended_s: float
    step: StepDone
    number: int


@dataclass
class Look:
    """A moment at which traces are read."""

    at_s: float
    parts_by_node: Sequence[Sequence[Part]]
    """That ended since the moment before, by the clock of each node."""
    length_s: float
    job: Job

    def work(self, rank: int) -> RankWork:
        """What the trace of a rank says of the window. The clocks of nodes differ a little."""
        parts = self.parts_by_node[rank // self.job.per_node]
        rail, member = rank % self.job.per_node, rank // self.job.per_node
        previous, following = (member - 1) % self.job.nodes, (member + 1) % self.job.nodes
        sends = [part.step.parts[part.number][1][rail].sends[member] for part in parts]
        receives = [part.step.parts[part.number][1][rail].receives[member] for part in parts]
        return RankWork(
            rank=rank,
            node=self.job.node(rank),
            length_s=self.length_s,
            flows=(
                self._flow(rail, member, following, sends, True),
                self._flow(rail, member, previous, receives, False),
            ),
            comms=(CommWork(1000 + rail, f"dp_{rail}", member, self.job.nodes, len(parts)),),
            proxy_busy_s=sum(part.step.busy_s[rank] / self.job.parts for part in parts),
            proxy_ran_s=sum(part.step.ran_s[rank] / self.job.parts for part in parts),
        )

    def latter(self, after_s: float) -> Look:
        """The part of the window from so long after its beginning on."""
        begun_s = self.at_s - self.length_s + after_s
        parts = [[part for part in of if part.ended_s > begun_s] for of in self.parts_by_node]
        return Look(self.at_s, parts, self.length_s - after_s, self.job)

    def _flow(self, rail: int, member: int, peer: int, sides: Sequence[Side], sends: bool) -> FlowWork:
        steps = sum(side.steps for side in sides)
        return FlowWork(
            1000 + rail,
            member,
            peer,
            "send" if sends else "recv",
            steps,
            steps * self.job.chunk_bytes,
            sum(side.first_s for side in sides),
            sum(side.second_s for side in sides),
            sum(side.third_s for side in sides),
            sum(side.working_s for side in sides),
        )


class Life:
    """A job from its start on. Ask `looks` for its windows."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self.job = job
        self.rng = rng
        self._stores: dict[object, list[StepDone]] = {}
        self._at_s = 0.0
        self._left: list[list[Part]] = [[] for _ in range(job.nodes)]
        self._skews_s = [rng.uniform(0.0, MOST_SKEW_S) for _ in range(job.nodes)]

    def stored(self, kind: object, make: Callable[[], StepDone]) -> StepDone:
        """Return a step of a kind; new ones until there are enough, old ones then."""
        store = self._stores.setdefault(kind, [])
        if len(store) < STORED:
            store.append(make())
            return store[-1]
        return self.rng.choice(store)

    def looks(self, steps: Iterator[StepDone], window_s: float, until_s: float) -> Iterator[Look]:
        """Yield the windows of so many seconds until a time."""
        next_s = (self._at_s // window_s + 1) * window_s
        while next_s <= until_s:
            while self._at_s <= next_s + MOST_SKEW_S:
                done = next(steps)
                begun = [Part(self._at_s + ended, done, number) for number, (ended, _) in enumerate(done.parts)]
                for left in self._left:
                    left += begun
                self._at_s += done.length_s
            parts: list[list[Part]] = []
            for node, skew_s in enumerate(self._skews_s):
                parts.append([part for part in self._left[node] if part.ended_s <= next_s + skew_s])
                self._left[node] = self._left[node][len(parts[-1]) :]
            yield Look(next_s, parts, window_s, self.job)
            next_s += window_s


@dataclass
class Case:
    """A run: windows until `ends_s`, with something wrong from `strikes_s` on; None: never."""

    name: str
    job: Job
    life: Life
    steps: Iterator[StepDone]
    ends_s: float
    strikes_s: float | None = None
    expected: AtFault | None = None
    fault: Fault | None = None


class _Changing:
    """What goes on in a job beside a fault: in half of them nothing; else some steps are uneven, or the fabric is busy at times,
    or checkpoints are saved."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self._job, self._rng = job, rng
        self._kind = rng.choice(("calm", "calm", "calm", "uneven", "busy", "checkpoint"))
        self._left, self._now = 0, Weather()

    def of_step(self) -> Weather:
        """The weather of the next step."""
        rng, job = self._rng, self._job
        if self._kind == "uneven" and rng.random() < 0.15:
            return Weather(late_s=((rng.randrange(job.ranks), job.compute_s * rng.uniform(0.1, 1.0)),))
        if self._kind == "checkpoint" and rng.random() < 0.03:
            return Weather(late_s=((0, rng.uniform(0.5, 8.0)),))
        if self._kind == "busy":
            if not self._left:
                self._left = rng.randrange(20, 80)
                self._now = Weather(wire=rng.choice((1.0, 1.0, rng.uniform(1.1, 1.8))), wires=_by_wire(job, rng, 0.1))
            self._left -= 1
            return self._now
        return Weather()


def _by_wire(job: Job, rng: random.Random, most: float) -> tuple[float, ...]:
    return tuple(rng.uniform(1.0, 1.0 + most) for _ in range(job.ranks))


def faulty(name: FaultName, seed: int, *, well_s: float = 150.0, for_s: float = 60.0, nodes: int = 0) -> Case:
    """Return a job that is well for a while and then has a fault; of so many nodes, if that is given."""
    rng = random.Random(f"{name} {seed}")
    job = draw_job(rng)
    job = replace(job, nodes=nodes) if nodes else job
    fault = draw_fault(name, job, rng)
    life = Life(job, rng)
    strikes_s = well_s + rng.uniform(0.0, 10.0)

    weather = _Changing(job, rng)

    def steps() -> Iterator[StepDone]:
        at_s = 0.0
        while True:
            done = step(job, fault if at_s >= strikes_s else None, weather.of_step(), rng)
            at_s += done.length_s
            yield done

    return Case(name, job, life, steps(), strikes_s + for_s, strikes_s, at_fault(fault, job), fault)


def harmless(name: HarmlessName, seed: int, *, for_s: float = 3600.0, nodes: int = 0) -> Case:
    """Return a job in which nothing is wrong, but something is unusual; of so many nodes, if that is given."""
    rng = random.Random(f"{name} {seed}")
    job = draw_job(rng)
    job = replace(job, nodes=nodes) if nodes else job
    if name == "far":
        job = far_job(job, rng)
    if name == "logging":
        job = replace(job, leaves=1)
    life = Life(job, rng)
    return Case(name, job, life, _HARMLESS[name](life), for_s)


Steps = Iterator[StepDone]


def _usual(life: Life) -> StepDone:
    return life.stored("well", lambda: step(life.job, None, Weather(), life.rng))


def _nothing(life: Life) -> Steps:
    while True:
        yield _usual(life)


def _congestion(life: Life) -> Steps:
    """The fabric is busy with others' work for minutes, a bit more here than there."""
    rng = life.rng
    while True:
        for _ in range(rng.randrange(20, 300)):
            yield _usual(life)
        factor, jitter = round(rng.uniform(1.3, 4.0), 1), rng.choice((0.05, 0.15, 0.25))
        weather = Weather(wire=factor, wire_jitter=jitter, wires=_by_wire(life.job, rng, 0.2))
        store = [step(life.job, None, weather, rng) for _ in range(STORED)]
        for _ in range(rng.randrange(10, 200)):
            yield rng.choice(store)


def _uneven(life: Life) -> Steps:
    """Now and then a rank has more data than the others."""
    rng = life.rng

    def make() -> StepDone:
        late = ((rng.randrange(life.job.ranks), life.job.compute_s * rng.uniform(0.2, 1.5)),)
        return step(life.job, None, Weather(late_s=late), rng)

    while True:
        if rng.random() < 0.4:
            yield life.stored("uneven", make) if rng.random() < 0.9 else make()
        else:
            yield _usual(life)


def _late_now_and_then(life: Life, who: Sequence[int], every: tuple[int, int], late_s: tuple[float, float]) -> Steps:
    rng = life.rng
    while True:
        for _ in range(rng.randrange(*every)):
            yield _usual(life)
        yield step(life.job, None, Weather(late_s=tuple((rank, rng.uniform(*late_s)) for rank in who)), rng)


def _evaluation(life: Life) -> Steps:
    """All evaluate for a while: nothing is reduced meanwhile, some are ready before others."""
    rng = life.rng
    while True:
        for _ in range(rng.randrange(60, 200)):
            yield _usual(life)
        late = tuple((rank, rng.uniform(0.0, 2.0)) for rank in range(life.job.ranks))
        yield step(life.job, None, Weather(before_s=rng.uniform(5.0, 90.0), late_s=late), rng)


def _warm_up(life: Life) -> Steps:
    """Steps are long at first, and some ranks compile for longer than others; later that happens again, for a few steps."""
    rng = life.rng
    count = rng.randrange(8, 30)
    while True:
        slow = rng.sample(range(life.job.ranks), 2)
        for number in range(count):
            late = tuple((rank, life.job.compute_s * rng.uniform(0.5, 8.0) / (1 + number / 3)) for rank in slow)
            yield step(
                life.job, None, Weather(late_s=late, before_s=rng.uniform(0.0, 20.0) if number == 0 else 0.0), rng
            )
        for _ in range(rng.randrange(100, 400)):
            yield _usual(life)
        count = rng.randrange(1, 4)


def _sizes(life: Life) -> Steps:
    """Messages become larger and smaller, for some steps at a time."""
    rng = life.rng
    while True:
        chunks, factor = rng.choice((0.3, 0.5, 1.0, 2.0)), rng.choice((0.4, 1.0, 1.6))
        weather = Weather(chunks=chunks, wire=factor)
        for _ in range(rng.randrange(1, 60)):
            yield life.stored((chunks, factor), lambda weather=weather: step(life.job, None, weather, rng))


def _pause(life: Life) -> Steps:
    rng = life.rng
    while True:
        for _ in range(rng.randrange(30, 200)):
            yield _usual(life)
        yield step(life.job, None, Weather(before_s=rng.uniform(5.0, 200.0)), rng)


_HARMLESS: dict[HarmlessName, Callable[[Life], Steps]] = {
    "none": _nothing,
    "congestion": _congestion,
    "uneven": _uneven,
    "evaluation": _evaluation,
    "evaluation_of_one": lambda life: _late_now_and_then(life, [0], (60, 200), (5.0, 60.0)),
    "checkpoint": lambda life: _late_now_and_then(life, [0, life.job.per_node], (10, 200), (0.5, 25.0)),
    "warm_up": _warm_up,
    "sizes": _sizes,
    "pause": _pause,
    "far": _nothing,
    "logging": _nothing,
}
