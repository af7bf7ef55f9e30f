"""Training steps of a job in which something is slow, from a seed: who computes how long, whose wire is how fast.

Ranks stand in nodes; those at the same place of all nodes form a ring that reduces gradients over the network (data parallelism
by rails), and the ranks of a node may wait for each other before that (tensor parallelism, which NCCL's proxies never see). A
step is a few parts: each computes, and then passes a collective round. Severity is drawn for every run. Nothing here knows of
thresholds: what a fault does to the machine is written down, not how it is found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from tracer.nccl.slow_ring import Member, Passed, Wake, pass_round, sleeping, starved

FaultName = Literal["wire", "nic", "pcie", "traffic", "compute", "clock", "proxy"]
#: Mycroft's injections, the shutdown of a NIC (which is a hang) replaced by a wire of limited rate.
FAULTS: tuple[FaultName, ...] = get_args(FaultName)
HarmlessName = Literal[
    "none",
    "congestion",
    "uneven",
    "evaluation",
    "evaluation_of_one",
    "checkpoint",
    "warm_up",
    "sizes",
    "pause",
    "far",
    "logging",
]
HARMLESS: tuple[HarmlessName, ...] = get_args(HarmlessName)


@dataclass(frozen=True)
class Job:
    """What a job is like while all is well."""

    nodes: int
    per_node: int
    coupled: bool
    """The ranks of a node wait for each other before they come to the network."""
    compute_s: float
    """Of a part of a step."""
    chunk_s: float
    """Of a chunk on the wire."""
    gpu_s: float
    """Of a chunk on a GPU."""
    chunks: int
    parts: int = 2
    far: dict[tuple[int, int], float] = field(default_factory=dict)
    """By how much longer the way from a node to another is, where it is."""
    jitter: float = 0.02
    """Of what GPUs compute."""
    wire_jitter: float = 0.0
    """By how much wires differ from one another, anew in each part of each step."""
    chunk_bytes: int = 4 << 20
    leaves: int = 0
    """A node that comes to every part a little later, as it writes the log."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def node(self, rank: int) -> str:
        return f"node{rank // self.per_node}"


def draw_job(rng: random.Random) -> Job:
    """Return a job with a second or so a step, in which communication is a good part of it."""
    chunks = rng.choice((12, 16, 24))
    step_s, share, parts = rng.uniform(0.6, 1.6), rng.uniform(0.25, 0.6), rng.choice((1, 2))
    chunk_s = step_s * share / parts / (chunks + 3)
    return Job(
        nodes=rng.choice((3, 4, 6)),
        per_node=rng.choice((2, 4)),
        coupled=rng.random() < 0.5,
        compute_s=step_s * (1 - share) / parts,
        chunk_s=chunk_s,
        gpu_s=chunk_s * rng.uniform(0.1, 0.4),
        chunks=chunks,
        parts=parts,
        jitter=rng.uniform(0.005, 0.05),
        wire_jitter=rng.uniform(0.0, 0.2),
    )


@dataclass(frozen=True)
class Fault:
    """What is wrong, and with whom."""

    name: FaultName
    rank: int
    severity: float
    """How many times as long what is slow takes; of a proxy thread the part of its time for which it does not run."""
    whole_node: bool = False
    """Something computes beside on all GPUs of the node."""
    way: Literal["in_flight", "refused"] = "in_flight"
    """A limited NIC takes all it is offered and delivers late, or takes little at a time."""
    sleeps: bool = False
    """A proxy thread sleeps for long now and then, rather than running only a part of the time."""


def draw_fault(name: FaultName, job: Job, rng: random.Random) -> Fault:
    """Return a fault that the job can feel."""
    low, high = {
        "wire": (1.8, 4.0), "nic": (1.9, 2.1), "pcie": (1.6, 4.0), "traffic": (1.8, 3.5),
        "compute": (1.2, 1.8), "clock": (1.15, 1.6), "proxy": (0.3, 0.9),
    }[name]  # fmt: skip
    return Fault(
        name=name,
        rank=rng.randrange(job.ranks),
        severity=rng.uniform(low, high),
        whole_node=name == "compute" and rng.random() < 0.5,
        way="refused" if rng.random() < 0.3 else "in_flight",
        sleeps=rng.random() < 0.5,
    )


@dataclass(frozen=True)
class AtFault:
    """Who is to be named."""

    components: frozenset[str]
    ranks: frozenset[int]
    """Who may be named: of a link both ends."""
    nodes: frozenset[str]


def at_fault(fault: Fault, job: Job) -> AtFault:
    """Return whom a right verdict names. Where the ranks of a node wait for each other, nobody can tell which was late."""
    mates = frozenset(rank for rank in range(job.ranks) if job.node(rank) == job.node(fault.rank))
    own, node = frozenset({fault.rank}), frozenset({job.node(fault.rank)})
    if fault.name in ("wire", "traffic"):
        peer = (fault.rank + job.per_node) % job.ranks
        return AtFault(frozenset({"link"}), own | {peer}, node | {job.node(peer)})
    if fault.name in ("nic", "pcie") and job.nodes == 2:  # each has one way to the other: it is one end or the other
        peer = (fault.rank + job.per_node) % job.ranks
        return AtFault(frozenset({"link"}), own | {peer}, node | {job.node(peer)})
    if fault.name in ("nic", "pcie"):
        return AtFault(frozenset({"nic"}), own, node)
    if fault.name == "proxy":
        return AtFault(frozenset({"proxy"}), own, node)
    if fault.whole_node or job.coupled:
        return AtFault(frozenset({"gpu", "node"}), mates, node)
    return AtFault(frozenset({"gpu"}), own, node)


@dataclass(frozen=True)
class Weather:
    """What is unusual in a step though nothing is wrong."""

    wire: float = 1.0
    """All wires are so many times as slow."""
    wire_jitter: float = 0.0
    wires: tuple[float, ...] = ()
    """How many times as slow the way from each rank is, on top of that; empty: none is."""
    late_s: tuple[tuple[int, float], ...] = ()
    """Ranks that come later to the first part of the step, and by how much."""
    chunks: float = 1.0
    """Chunks a collective has, against the usual."""
    before_s: float = 0.0
    """Time that passes before the step, with nothing in flight."""


@dataclass
class StepDone:
    """One step: how long it took, and each collective: when it ended (from the beginning of the step), by rail how it went."""

    length_s: float
    parts: list[tuple[float, list[Passed]]]
    busy_s: list[float]
    """By rank, for how long its proxy thread had work."""
    ran_s: list[float]


def step(job: Job, fault: Fault | None, weather: Weather, rng: random.Random) -> StepDone:
    """Return how a step goes."""
    free = [0.0] * job.ranks
    busy, ran = [0.0] * job.ranks, [0.0] * job.ranks
    parts: list[tuple[float, list[Passed]]] = []
    late = dict(weather.late_s)
    chunks = max(4, round(job.chunks * weather.chunks))
    for part in range(job.parts):
        begun = list(free)
        ready = [
            free[rank] + _compute(job, fault, rank, rng) + (late.get(rank, 0.0) if part == 0 else 0.0)
            for rank in range(job.ranks)
        ]
        if job.coupled:
            for node in range(job.nodes):
                mates = slice(node * job.per_node, (node + 1) * job.per_node)
                ready[mates] = [max(ready[mates])] * job.per_node
        jitter = max(job.wire_jitter, weather.wire_jitter)
        wires = weather.wires or (1.0,) * job.ranks
        factors = [rng.uniform(1.0, 1.0 + jitter) * weather.wire * wires[rank] for rank in range(job.ranks)]
        rails = []
        for rail in range(job.per_node):
            ranks = range(rail, job.ranks, job.per_node)
            members = [_member(job, fault, rank, begun[rank], ready[rank], factors[rank], rng) for rank in ranks]
            passed = pass_round(members, chunks, lambda: rng.uniform(0.97, 1.03))
            rails.append(passed)
            for rank, ended in zip(ranks, passed.ended_s, strict=True):
                free[rank] = ended
                busy[rank] += ended - begun[rank]
                ran[rank] += (ended - begun[rank]) * _share_run(fault, rank, begun[rank], ended, rng)
        parts.append((max(free) + weather.before_s, rails))
    return StepDone(max(free) + weather.before_s, parts, busy, ran)


def _is_hit(job: Job, fault: Fault | None, rank: int) -> bool:
    if fault is None:
        return False
    return rank == fault.rank or (fault.whole_node and job.node(rank) == job.node(fault.rank))


def _compute(job: Job, fault: Fault | None, rank: int, rng: random.Random) -> float:
    """What a rank computes before a collective."""
    usual = job.compute_s * max(0.5, rng.gauss(1.0, job.jitter)) + (0.02 * job.compute_s if rank < job.leaves else 0.0)
    if fault is None or not _is_hit(job, fault, rank):
        return usual
    if fault.name == "clock":
        return usual * fault.severity
    if fault.name == "compute":  # what runs beside comes and goes
        return usual * (1 + (fault.severity - 1) * rng.uniform(0.5, 1.5))
    if fault.name == "pcie":  # its input comes that way, too
        return usual * (1 + 0.01 * fault.severity)
    return usual


def _member(
    job: Job, fault: Fault | None, rank: int, begun: float, ready: float, factor: float, rng: random.Random
) -> Member:
    here, there = rank // job.per_node, (rank // job.per_node + 1) % job.nodes
    gpu_s, flush_s, wake, accepts = job.gpu_s, job.chunk_s * 0.02, None, 8
    wire_s = job.chunk_s * factor * job.far.get((here, there), 1.0)
    if fault is not None:
        peer = (fault.rank - job.per_node) % job.ranks  # who sends to it
        if fault.name == "wire" and rank == fault.rank:
            wire_s *= fault.severity
        elif fault.name == "traffic" and rank == fault.rank:  # comes in bursts
            wire_s *= 1 + (fault.severity - 1) * rng.choice((0.3, 1.0, 1.0, 1.4))
        elif fault.name in ("nic", "pcie") and rank in (fault.rank, peer):
            wire_s *= fault.severity
            if rank == fault.rank:
                accepts = 2 if fault.way == "refused" else 8
        if fault.name == "pcie" and rank == fault.rank:
            flush_s *= 4 * fault.severity
        elif fault.name in ("clock", "compute") and _is_hit(job, fault, rank):
            gpu_s *= fault.severity
        elif fault.name == "proxy" and rank == fault.rank:
            wake = _wake(job, fault, ready, rng)
    return Member(begun, ready, gpu_s, wire_s, flush_s, wake, accepts)


def _wake(job: Job, fault: Fault, ready: float, rng: random.Random) -> Wake | None:
    if fault.sleeps:  # Mycroft's: a second, now and then
        if rng.random() > 0.7:
            return None
        return sleeping(
            ready + rng.uniform(0.0, 0.8) * job.chunks * job.chunk_s, rng.uniform(0.3, 1.0) * fault.severity
        )
    every_s = job.chunk_s * 4 * fault.severity
    return starved(every_s, rng.uniform(0.0, every_s))


def _share_run(fault: Fault | None, rank: int, begun: float, ended: float, rng: random.Random) -> float:
    """For which part of its work a proxy thread ran: never quite all, as the kernel runs other things, too."""
    usual = rng.uniform(0.93, 1.0)
    if fault is None or fault.name != "proxy" or rank != fault.rank:
        return usual
    if fault.sleeps:
        return usual * max(0.1, 1 - 0.65 * 0.7 * fault.severity / max(ended - begun, 1e-6))
    return usual * (1 - fault.severity)


def far_job(job: Job, rng: random.Random) -> Job:
    """Return the job with nodes in two halls, between which all is slower."""
    half = max(1, job.nodes // 2)
    factor = rng.uniform(1.5, 3.0)
    return replace(job, far={(half - 1, half): factor, (job.nodes - 1, 0): factor})
