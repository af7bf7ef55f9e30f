"""A fleet that trains, from a seed: what its machines, its data and its network do, and what agents and sensors say of that.

Nothing here knows how slowness is found, nor any threshold: a fault is what it does to a machine, of a severity drawn for each
run, and a sensor speaks when its own condition has lasted as long as it waits for. Harmless things are those that every long job
lives with. Times are those of a bulk-synchronous step: all ranks work, and meet in their groups.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from robust_run.tracer.pace.types import CpuShort, NodePace, RankPace
from robust_run.tracer.types import Group

ROUND_S = 10.0
FaultName = Literal[
    "cpu_quota", "pcie_width", "thermal_clock", "slow_disk", "slow_loader", "slow_stage", "slow_link", "noisy_neighbour",
    "memory_cgroup", "drift", "slow_rank", "slow_storage",
]  # fmt: skip
FAULTS: tuple[FaultName, ...] = get_args(FaultName)
HarmlessName = Literal[
    "congestion", "congestion_of_group", "uneven", "lengths", "evaluation", "checkpoint", "warm_up", "cron", "garbage",
    "evaluation_of_one", "storage_hiccup",
]  # fmt: skip
HARMLESS: tuple[HarmlessName, ...] = get_args(HarmlessName)

FELT: dict[str, tuple[str, ...]] = {
    "cpu_quota": ("cpu.throttled",),
    "pcie_width": ("gpu.pcie_width",),
    "thermal_clock": ("gpu.hot", "gpu.throttled"),
    "slow_disk": ("disk.pressure",),
    "slow_link": ("network.link_slow",),
    "noisy_neighbour": ("cpu.pressure", "cpu.neighbour"),
    "memory_cgroup": ("memory.pressure",),
    "slow_storage": ("store.slow",),
    "cron": ("cpu.pressure", "cpu.neighbour"),
    "storage_hiccup": ("store.slow",),
    "checkpoint": ("disk.pressure", "disk.slow_fsync"),
    "congestion": ("network.retransmits",),
    "congestion_of_group": ("network.retransmits",),
}
"""What sensors of the node feel of it, once it has lasted."""


@dataclass
class Fault:
    """Something that slows a part of the fleet down from some moment on."""

    name: FaultName
    since_s: float
    severity: float
    """How many times as long it makes what it touches."""
    node: int = 0
    rank: int = 0
    stage: int = 0

    def has_lasted_s(self, at_s: float) -> float:
        return at_s - self.since_s


@dataclass
class Fleet:
    """A job on its machines."""

    seed: int
    nodes: int = 4
    per_node: int = 2
    stages: int = 2
    steps: int = 22
    """Of a round, that are simulated: the newest ones."""
    harmless: Sequence[HarmlessName] = HARMLESS
    faults: list[Fault] = field(default_factory=list)
    at_s: float = 1000.0
    step: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        chance = self.chance
        self.world = self.nodes * self.per_node
        self.compute_ms = chance.uniform(60.0, 400.0)
        self.comm_ms = chance.uniform(0.05, 0.4) * self.compute_ms
        self.load_ms = chance.uniform(0.3, 0.7) * self.compute_ms
        """What a batch takes to be loaded, while the one before is computed."""
        self.fetch_ms = chance.uniform(0.5, 3.0)
        self.noise = chance.uniform(0.01, 0.05)
        self.unevenness = chance.uniform(0.05, 0.35) if "uneven" in self.harmless else 0.0
        self.is_bucketed = "lengths" in self.harmless and chance.random() < 0.5
        self.bucket_s = chance.uniform(120.0, 900.0)
        self.began_s = self.at_s
        self.bursts: list[tuple[HarmlessName, float, float, float, int]] = []
        """Harmless things under way: what, from, until, how strong, on which node or in which group."""
        self.spoken: dict[tuple[int, str], float] = {}
        """Since when a sensor's condition has been true, by node and name."""
        self.short: dict[str, CpuShort] = {}
        self.transfers: dict[str, list[float]] = {}

    # --- what the fleet is like

    def node_of(self, rank: int) -> int:
        return rank // self.per_node

    def name(self, node: int) -> str:
        return f"gpu-{node:02d}"

    def stage_of(self, rank: int) -> int:
        return rank * self.stages // self.world

    @property
    def groups(self) -> tuple[Group, ...]:
        """Data-parallel groups, one for each stage."""
        return tuple(
            Group(name=f"dp_{stage}", ranks=tuple(r for r in range(self.world) if self.stage_of(r) == stage))
            for stage in range(self.stages)
        )

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """Who sends to whom, from stage to stage."""
        apart = self.world // self.stages
        return frozenset((rank, rank + apart) for rank in range(self.world - apart)) if self.stages > 1 else frozenset()

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        return tuple(group.ranks for group in self.groups)

    # --- a round

    def round(self) -> list[NodePace]:
        """Let ten seconds pass, and return what agents say of them."""
        begin_s = self.at_s
        self.at_s += ROUND_S
        self._begin_bursts(begin_s)
        rows: list[list[tuple[float, float, float]]] = [[] for _ in range(self.world)]
        self.transfers = {group.name: [] for group in self.groups}
        length_s = 0.0
        made = 0
        while made < self.steps and length_s < ROUND_S:
            length_s += self._step(begin_s, rows) / 1e3
            made += 1
        in_round = max(made, int(made * ROUND_S / max(length_s, 1e-9)))
        self.step += in_round
        self._sense()
        return self._said(begin_s, rows, self.step - made + 1)

    def _step(self, begin_s: float, rows: list[list[tuple[float, float, float]]]) -> float:
        common = self._common(begin_s)
        own = [self._own(rank, begin_s, common) for rank in range(self.world)]
        comm = {group.name: self._comm(number, begin_s) for number, group in enumerate(self.groups)}
        for name, took_ms in comm.items():
            self.transfers[name].append(took_ms)
        length_ms = max(work_ms + late_ms for work_ms, late_ms in own) + max(comm.values())
        for rank, (work_ms, late_ms) in enumerate(own):
            rows[rank].append((work_ms + late_ms, length_ms, late_ms))
        return length_ms

    def _common(self, begin_s: float) -> float:
        """What the lengths of this step's samples make of it, on all ranks: batches are sorted into buckets."""
        if not self.is_bucketed:
            return 1.0
        where = ((begin_s - self.began_s) % self.bucket_s) / self.bucket_s
        return 0.9 + 0.2 * where

    def _own(self, rank: int, begin_s: float, common: float) -> tuple[float, float]:
        """Return what a rank works in a step, and what it waits for data, in milliseconds."""
        chance, node = self.chance, self.node_of(rank)
        work = self.compute_ms * common * chance.lognormvariate(0.0, self.noise)
        if self.unevenness:
            work *= chance.lognormvariate(0.0, self.unevenness)
        load = self.load_ms * chance.lognormvariate(0.0, 0.2)
        for what, _, _, strength, where in self._under_way(begin_s):
            if what == "warm_up":
                work *= strength
            elif what == "cron" and where == node:
                work *= chance.uniform(1.0, strength)
            elif what == "storage_hiccup":
                load *= strength
            elif what == "checkpoint" and rank == 0 and chance.random() < 0.05:
                work += 1e3 * strength
            elif what == "evaluation" and chance.random() < 0.03:
                work += 2e3 * strength
            elif what == "evaluation_of_one" and rank == 0 and chance.random() < 0.05:
                work += 1e3 * strength
        if "garbage" in self.harmless and chance.random() < 0.02:
            work += 0.4 * self.compute_ms
        for fault in self.faults:
            if begin_s >= fault.since_s:
                work, load = self._harmed(fault, rank, work, load, begin_s)
        return work, self.fetch_ms + max(0.0, load - work)

    def _harmed(self, fault: Fault, rank: int, work: float, load: float, at_s: float) -> tuple[float, float]:
        node, by, chance = self.node_of(rank), fault.severity, self.chance
        here = node == fault.node
        match fault.name:
            case "cpu_quota" if here:
                return work * by * chance.uniform(0.9, 1.1), load * by
            case "pcie_width" | "thermal_clock" if here:
                return work * by, load
            case "slow_disk" if here:
                return work, load * 4.0 * by
            case "slow_loader" if rank == fault.rank:
                return work, load * 4.0 * by
            case "slow_stage" if self.stage_of(rank) == fault.stage:
                return work * by, load
            case "noisy_neighbour" if here:
                return work * chance.uniform(1.0 + 0.5 * (by - 1.0), 1.0 + 1.5 * (by - 1.0)), load * by
            case "memory_cgroup" if here:
                return work * chance.uniform(1.0 + 0.6 * (by - 1.0), 1.0 + 1.4 * (by - 1.0)), load * by
            case "drift" if here:
                return work * (1.0 + (by - 1.0) * fault.has_lasted_s(at_s) / 3600.0), load
            case "slow_rank" if rank == fault.rank:
                return work * by, load
            case "slow_storage":
                return work, load * 4.0 * by
        return work, load

    def _comm(self, group: int, begin_s: float) -> float:
        took = self.comm_ms * self.chance.lognormvariate(0.0, 0.1)
        for what, _, _, strength, where in self._under_way(begin_s):
            if what == "congestion" or (what == "congestion_of_group" and where % self.stages == group):
                took *= self.chance.uniform(1.0, strength)
        for fault in self.faults:
            is_slow = fault.name == "slow_link" and begin_s >= fault.since_s
            if is_slow and group == self.stage_of(fault.node * self.per_node):
                took *= 1.0 + 3.0 * fault.severity
        return took

    # --- harmless things

    def _under_way(self, at_s: float) -> list[tuple[HarmlessName, float, float, float, int]]:
        return [burst for burst in self.bursts if burst[1] <= at_s < burst[2]]

    def _begin_bursts(self, at_s: float) -> None:
        chance = self.chance
        if at_s == self.began_s and "warm_up" in self.harmless:
            self.bursts.append(("warm_up", at_s, at_s + chance.uniform(10.0, 30.0), chance.uniform(1.2, 3.0), 0))
        kinds: tuple[tuple[HarmlessName, float, float, float, float, float], ...] = (
            ("congestion", 900.0, 20.0, 300.0, 1.5, 5.0),
            ("congestion_of_group", 900.0, 20.0, 300.0, 1.5, 5.0),
            ("evaluation", 1800.0, 10.0, 60.0, 2.0, 30.0),
            ("evaluation_of_one", 1800.0, 10.0, 60.0, 2.0, 10.0),
            ("checkpoint", 600.0, 10.0, 30.0, 1.0, 20.0),
            ("cron", 1800.0, 10.0, 30.0, 1.2, 2.5),
            ("storage_hiccup", 1800.0, 10.0, 90.0, 1.5, 5.0),
        )
        for name, every_s, shortest_s, longest_s, least, most in kinds:
            if name in self.harmless and chance.random() < ROUND_S / every_s:
                lasts_s = chance.uniform(shortest_s, longest_s)
                strength, where = chance.uniform(least, most), chance.randrange(self.nodes)
                self.bursts.append((name, at_s, at_s + lasts_s, strength, where))
        self.bursts = [burst for burst in self.bursts if burst[2] > at_s]

    # --- what is said

    def _sense(self) -> None:
        """What sensors feel now: a condition, since when, on which node."""
        felt: set[tuple[int, str]] = set()
        self.short = {self.name(node): CpuShort(0.0, self.chance.uniform(0.0, 20.0)) for node in range(self.nodes)}
        for fault in self.faults:
            if self.at_s <= fault.since_s:
                continue
            where = range(0, self.nodes, 2) if fault.name == "slow_storage" else (fault.node,)
            felt |= {(node, sign) for node in where for sign in FELT.get(fault.name, ())}
            if fault.name == "cpu_quota":
                self.short[self.name(fault.node)] = CpuShort(1.0 - 1.0 / fault.severity, 60.0)
            elif fault.name == "noisy_neighbour":
                self.short[self.name(fault.node)] = CpuShort(0.0, 75.0)
        for what, _, _, _, node in self._under_way(self.at_s - ROUND_S):
            felt |= {(node if what != "checkpoint" else 0, sign) for sign in FELT.get(what, ())}
            if what == "cron":
                self.short[self.name(node)] = CpuShort(0.0, self.chance.uniform(40.0, 90.0))
        self.spoken = {key: self.spoken.get(key, self.at_s) for key in felt}

    def signs(self) -> list[tuple[str, str, str]]:
        """Return what sensors have said and not taken back: each waits for its own time before it speaks."""
        patience_s = {"cpu.neighbour": 55.0, "store.slow": 60.0, "network.link_slow": 5.0, "gpu.pcie_width": 5.0}
        return [
            (self.name(node), name, f"{name} speaks")
            for (node, name), since_s in sorted(self.spoken.items())
            if self.at_s - since_s >= patience_s.get(name, 30.0)
        ]

    def _said(self, begin_s: float, rows: Sequence[Sequence[tuple[float, float, float]]], first: int) -> list[NodePace]:
        said = []
        for node in range(self.nodes):
            ranks = tuple(
                RankPace(
                    rank,
                    self.name(node),
                    first,
                    tuple(own for own, _, _ in rows[rank]),
                    tuple(whole for _, whole, _ in rows[rank]),
                    tuple(late for _, _, late in rows[rank]),
                )
                for rank in range(node * self.per_node, (node + 1) * self.per_node)
            )
            said.append(NodePace(0, self.name(node), begin_s, self.at_s, ranks))
        return said


def drawn(name: FaultName, fleet: Fleet, since_s: float) -> Fault:
    """Return a fault of this kind somewhere in a fleet, as severe as chance has it."""
    chance = random.Random(f"{name} {fleet.seed}")
    return Fault(
        name,
        since_s,
        severity=chance.uniform(1.3, 2.5),
        node=chance.randrange(fleet.nodes),
        rank=chance.randrange(fleet.world),
        stage=chance.randrange(fleet.stages),
    )
