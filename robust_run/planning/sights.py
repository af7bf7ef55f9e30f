"""How the faults of a plan look in the incidents of runs: one table, and what of a run is one fault. Pure.

Kinds that look the same (`storage`: a full disk, a slow file system, an outside service) share a row, and what is seen of it is
divided among them as they come in the mix. What the program does by itself (an exception of its own, a wish of people) is no
fault of a cluster, and in no row.

What is one fault: those of one row that name the same node within a day, which is how long one may stay in a node and show again
until somebody takes it out; where no node is named, those of a job within an hour; a version of the code. What was only reported
is none, but for slow nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.fleet.words import Component, IncidentFacts, RunFacts
from robust_run.report.types import VerdictKind

DAY_S, HOUR_S = 86400.0, 3600.0
#: What checks of nodes found says the part, not the fault: `check.compute`.
CHECKS = "check."
#: So many nodes at once are a switch, not a link.
SWITCH_NODES = 8


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of some kinds of faults of a plan."""

    name: str
    faults: tuple[str, ...]
    """Kinds of the plan (`planning.mix`)."""
    kinds: frozenset[VerdictKind] = frozenset()
    troubles: tuple[str, ...] = ()
    """Words of the evidence; one that ends in a dot is a beginning."""
    components: frozenset[Component] = frozenset()
    """Where the evidence has no word for it."""
    least_nodes: int = 0

    def has(self, incident: IncidentFacts) -> bool:
        """Whether an incident is one of these."""
        if len(incident.nodes) < self.least_nodes:
            return False
        if incident.kind in self.kinds:
            return True
        has_word = bool(incident.trouble) and not _is(incident.trouble, CHECKS)
        return any(_is(incident.trouble, each) for each in self.troubles) or (
            not has_word and incident.component in self.components
        )


ROWS = (
    Row(name="hangs", faults=("hang",), kinds=frozenset({"hang", "mismatch", "desync", "comm_stall"})),
    Row(name="slow nodes", faults=("slow",), kinds=frozenset({"slow"})),
    Row(name="wrong numbers", faults=("nan",), kinds=frozenset({"nan"}), troubles=("nan", "numbers.")),
    Row(name="bad updates", faults=("bad_update",), kinds=frozenset({"code"})),
    Row(
        name="lost nodes",
        faults=("kernel_panic",),
        kinds=frozenset({"node_lost"}),
        troubles=("kernel.",),
        components=frozenset({"node"}),
    ),
    Row(name="switches", faults=("switch",), troubles=("network.",), least_nodes=SWITCH_NODES),
    Row(name="network", faults=("infiniband",), troubles=("network.",), components=frozenset({"network"})),
    Row(
        name="GPU memory",
        faults=("gpu_memory",),
        troubles=("ecc", "gpu.ecc", "gpu.remap_failed", "gpu.remap_pending", "gpu_memory."),
    ),
    Row(name="lost GPUs", faults=("gpu_lost",), troubles=("gpu_lost", "gpu.lost")),
    Row(
        name="CUDA errors",
        faults=("cuda_error",),
        troubles=("cuda", "nccl", "illegal_memory_access", "gpu."),
        components=frozenset({"gpu"}),
    ),
    Row(name="mounts", faults=("mount",), troubles=("mount.",)),
    Row(
        name="disks",
        faults=("disk_fault",),
        troubles=("disk.read_only", "disk.error", "disk.lost", "disk.stuck", "disk.timeout"),
        components=frozenset({"disk"}),
    ),
    Row(
        name="storage",
        faults=("disk_space", "storage", "external_service"),
        troubles=("storage", "disk.", "fsync.", "store."),
        components=frozenset({"storage"}),
    ),
    Row(
        name="host memory",
        faults=("host_memory",),
        troubles=("host_memory", "memory."),
        components=frozenset({"memory"}),
    ),
    Row(name="overloaded hosts", faults=("cpu_overload",), troubles=("peer", "cpu."), components=frozenset({"cpu"})),
    Row(name="killed processes", faults=("container",), troubles=("native_crash",)),
)
"""The first that has an incident counts."""

OWN = ("user_exception", "usage", "device_memory")
"""Words of what the program does by itself."""
WISHES = ("operator", "node_evicted")
"""Rules of what people did: restarts and evictions. What they had seen has incidents of its own, if it was a fault."""
SHARED = ("storage",)
"""Rows of what all nodes use: while it is away each attempt may fail on another node."""
UNEXPLAINED = "unexplained"
"""Kind of a plan for what ended attempts and is in no row."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of a fleet: the first incident of each."""

    by_row: dict[str, tuple[IncidentFacts, ...]]
    """By the row's name, or `unexplained`."""
    again: int = 0
    """Incidents of a fault that was seen before."""
    own: int = 0
    """Incidents that were the program's own, or people's wish, or were only reported."""


def _is(trouble: str, word: str) -> bool:
    return trouble.startswith(word) if word.endswith(".") else trouble == word or trouble.startswith(f"{word}.")


def row_of(incident: IncidentFacts) -> str:
    """Return the row of an incident; empty: it is no fault of a cluster, `unexplained`: it is in none."""
    if incident.kind == "stopped" or incident.rule in WISHES:
        return ""
    if incident.kind != "code" and incident.trouble in OWN:
        return ""
    row = next((row for row in ROWS if row.has(incident)), None)
    if incident.action == "report" and (row is None or row.name != "slow nodes"):
        return ""
    if row is not None:
        return row.name
    return UNEXPLAINED if incident.component not in ("program", "code") else ""


def seen(runs: Iterable[RunFacts]) -> Seen:
    """Return the faults that runs have seen. A node's fault may show again in its next run."""
    incidents = sorted(
        ((number, each, _first_code(run)) for number, run in enumerate(runs) for each in run.incidents),
        key=lambda each: (each[1].at_s, each[0], each[1].number),
    )
    found: dict[str, list[IncidentFacts]] = {}
    newest: dict[tuple[str, str], float] = {}
    again = own = 0
    for number, incident, first in incidents:
        row = row_of(incident)
        if not row or (incident.kind == "code" and incident.code and incident.code == first):
            own += 1
        elif _is_again(newest, row, incident, number):
            again += 1
        else:
            found.setdefault(row, []).append(incident)
    return Seen(by_row={row: tuple(each) for row, each in found.items()}, again=again, own=own)


def _first_code(run: RunFacts) -> str:
    """Return the version of the code that a run began with: its exceptions are the program's, nobody had changed it."""
    return run.code[0].version if run.code else ""


def _is_again(newest: dict[tuple[str, str], float], row: str, incident: IncidentFacts, run: int) -> bool:
    """Whether one like it was seen a short time ago; it is remembered."""
    within_s = dict.fromkeys(incident.nodes, DAY_S)
    if not incident.nodes or row in SHARED:
        within_s[f"\0{run}"] = HOUR_S  # of another job it is another fault
    if incident.kind == "code":
        within_s = {
            f"\0{run}/{incident.code or incident.number}": DAY_S if incident.nodes else HOUR_S
        }  # wherever it ran
    is_again = any(incident.at_s - newest.get((row, place), float("-inf")) < each for place, each in within_s.items())
    newest.update({(row, place): incident.at_s for place in within_s})
    return is_again
