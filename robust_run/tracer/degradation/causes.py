"""From what sensors of a node said to what may make its ranks slow, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from robust_run.tracer.degradation.types import Cause, Degradation, Seen
from robust_run.tracer.pace.slowing import HELD_SHARE, PRESSURE_PERCENT
from robust_run.tracer.pace.types import CpuShort

#: Names of what sensors say, longest first where one begins with another. What is not here explains no slowness.
_SIGNS: tuple[tuple[str, Cause], ...] = (
    ("cpu.throttled", "cpu_limit"),
    ("cpu.neighbour", "neighbour"),
    ("cpu.pressure", "cpu_busy"),
    ("cpu.hot", "cpu_busy"),
    ("gpu.throttled", "gpu_clock"),
    ("gpu.hot", "gpu_clock"),
    ("gpu.pcie_width", "pcie"),
    ("gpu.pcie_speed", "pcie"),
    ("gpu.pcie_narrow", "pcie"),
    ("memory.pressure", "memory"),
    ("memory.swapping", "memory"),
    ("memory.short", "memory"),
    ("disk.pressure", "disk"),
    ("disk.slow_fsync", "disk"),
    ("disk.stuck", "disk"),
    ("disk.timeout", "disk"),
    ("disk.error", "disk"),
    ("store.", "storage"),
    ("mount.", "storage"),
    ("network.retransmits", "fabric"),
    ("network.drops", "fabric"),
    ("network.", "network"),
    ("gpu.nvlink", "network"),
)
#: The more telling first: pressure of CPUs follows from nearly everything else.
_ORDER: tuple[Cause, ...] = (
    "pcie", "gpu_clock", "cpu_limit", "memory", "neighbour", "storage", "disk", "network", "fabric", "cpu_busy",
)  # fmt: skip
#: What may make a rank's own work longer, and what may make it wait for data or for peers.
OF_WORK: tuple[Cause, ...] = (
    "pcie", "gpu_clock", "cpu_limit", "memory", "neighbour", "disk", "storage", "cpu_busy",
)  # fmt: skip
OF_DATA: tuple[Cause, ...] = ("storage", "disk", "memory", "cpu_limit", "neighbour", "network")
OF_WAITING: tuple[Cause, ...] = ("network", "fabric")
#: A machine or its neighbours are to blame, not the program: another node would do better.
OF_MACHINES = frozenset(("pcie", "gpu_clock", "cpu_limit", "memory", "neighbour", "disk"))


def cause_of(sign: str) -> Cause:
    """Return what a sensor's event of this name may cause; empty: no slowness."""
    return next((cause for name, cause in _SIGNS if sign.startswith(name)), "")


def seen_on(short: Mapping[str, CpuShort], signs: Iterable[tuple[str, str, str]]) -> tuple[Seen, ...]:
    """Return what was seen that may be why ranks are slow.

    `short`: how short CPU time is, by node. `signs`: node, name and words of what its sensors say and have not taken back.
    """
    found: dict[tuple[str, Cause], Seen] = {}
    for node, one in sorted(short.items()):
        if one.held_share >= HELD_SHARE:
            words = f"the CPU limit of their cgroup holds ranks back {100 * one.held_share:.0f} % of the time"
            found[node, "cpu_limit"] = Seen(node, "cpu_limit", words)
        elif one.pressure_percent >= PRESSURE_PERCENT:
            words = f"work waits for a CPU {one.pressure_percent:.0f} % of the time"
            found[node, "cpu_busy"] = Seen(node, "cpu_busy", words)
    for node, name, words in signs:
        if cause := cause_of(name):
            found.setdefault((node, cause), Seen(node, cause, words))
    return tuple(found.values())


def most_telling(seen: Sequence[Seen], among: Sequence[Cause]) -> Cause:
    """Return the cause that explains most, of those asked for; empty: none was seen."""
    known = {one.cause for one in seen}
    return next((cause for cause in _ORDER if cause in known and cause in among), "")


def shared_cause(seen: Sequence[Seen], nodes: Iterable[str], among: Sequence[Cause]) -> Cause:
    """Return what was seen on at least half of these nodes; empty: nothing was."""
    names = set(nodes)
    for cause in _ORDER:
        here = {one.node for one in seen if one.cause == cause and one.node in names}
        if cause in among and here and 2 * len(here) >= len(names):
            return cause
    return ""


_ADVICE: dict[Cause, str] = {
    "cpu_limit": "raise the CPU limit of the job's cgroup there (cpu.max), or take the node out: robust evict {node}",
    "cpu_busy": "give the ranks the CPUs that they need (fewer loader workers, no other jobs there), or: robust evict {node}",
    "neighbour": "end what else runs on that node, or take the node out: robust evict {node}",
    "gpu_clock": "see to the cooling and the power of that node's GPUs: robust check --node {node}, then robust evict {node}",
    "pcie": "the GPU's link has become narrower; only a reset or another node helps: robust evict {node}",
    "memory": "give the job more memory there (memory.max), or let its loader keep less; else: robust evict {node}",
    "disk": "see to the disk of that node, or read from elsewhere: robust check --node {node}, then robust evict {node}",
    "storage": "it is the storage, not the job: see to its load; more loader workers, or a copy nearer, hide it",
    "network": "check the links of these nodes: robust check --all; a node that is named again: robust evict {node}",
    "fabric": "losses on the way are the fabric's as often as a node's: look at the switches, and for whose traffic it is",
    "data": "data come too late: more loader workers (num_workers), prefetch_factor, or a nearer copy of the data",
    "work": "give the stage fewer layers, or the others more; no machine is at fault",
}
_ADVICE_OF_KIND = {
    "rank": "check the node: robust check --node {node}; --on-slow diagnose does so by itself",
    "node": "check the node: robust check --node {node}; --on-slow diagnose does so by itself",
    "stage": "its ranks became slower together, so suspect its data or the program, not a machine",
    "group": "check the links between these nodes: robust check --all",
    "all": "it is no single machine: suspect longer data, a change of the program, or what all share",
    "plan": "see what steps consist of: robust report --what-if",
}


def advice(found: Degradation) -> str:
    """Return what to do about it, as one line."""
    text = _ADVICE.get(found.cause, "") or _ADVICE_OF_KIND[found.kind]
    if found.cause == "data" and found.kind in ("rank", "node"):
        text += "; only this one is late, so look at its node first: robust check --node {node}"
    return text.replace("{node}", found.nodes[0] if found.nodes else "NODE")
