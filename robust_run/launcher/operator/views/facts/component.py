"""Which part of a machine, or of the job, a fault was in, by the words of its incident. Pure.

What the evidence says in particular goes before the rule that spoke, and the rule before the kind of the verdict. A component is
what would have to be mended, so far as it can be told: where the same words fit a broken part and a wrong program, the one that
published numbers give more often stands here, with the reason. Nothing is done by it: it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.fleet.words import Component
from robust_run.report.types import VerdictKind

TROUBLES: Mapping[str, Component] = {
    # Words of a rank's last lines (`health.types.Trouble`).
    "user_exception": "code",
    "usage": "code",
    "cuda": "gpu",  # ByteRobust table 1: the most frequent symptom; those that recur are the GPU's
    "ecc": "gpu",
    "gpu_lost": "gpu",
    "illegal_memory_access": "program",  # ByteRobust table 2: user code in 41 of 62 cases
    "device_memory": "program",  # the program's own need
    "host_memory": "program",  # likewise; a node's memory fails as `memory` or `hardware.corrected`
    "native_crash": "program",
    "mismatch": "program",  # ranks called different collectives
    "nccl": "network",  # what it says is of a connection; a dead peer has a verdict of its own
    "storage": "storage",
    "peer": "unknown",  # shows only that a peer went
    "nan": "unknown",  # ByteRobust 4.2: data, code and silent faults of GPUs alike
    # Names of what sensors say (docs/health.md), by their beginning.
    "gpu": "gpu",
    "gpu_memory": "gpu",
    "kernel": "node",  # the operating system: all of the node goes
    "kernel.lockup": "cpu",
    "kernel.rcu_stall": "cpu",
    "kernel.hung_task": "unknown",  # a process waits in the kernel, for whatever
    "hardware": "node",
    "hardware.machine_check": "cpu",  # its caches and its memory controller, mostly
    "hardware.machine_check_logged": "cpu",
    "hardware.corrected": "memory",
    "memory": "memory",
    "memory.oom_kill": "program",  # it needs more than it may have: not the node's fault
    "cpu": "cpu",
    "clock": "node",
    "disk": "disk",
    "disk.hung": "storage",  # a file system that does not answer; all nodes may use it
    "fsync": "storage",  # likewise
    "mount": "storage",
    "store": "storage",
    "image": "storage",
    "network": "network",
    "numbers": "gpu",  # sums that differ between ranks: arithmetic that went wrong unseen
    "training": "unknown",
    "training.hung": "storage",
    "outlier": "node",
    "worker": "program",
    # What stop-time checks found (docs/checks.md).
    "check.compute": "gpu",
    "check.compute.cpu": "cpu",
    "check.model": "gpu",
    "check.model.cpu": "cpu",
    "check.memory": "memory",
    "check.disk": "disk",
    "check.exchange": "gpu",  # within a node devices talk over NVLink or PCIe
    "check.neighbours": "network",
    "check.allreduce": "network",
}
"""By trouble, or by its longest beginning up to a dot."""

RULES: Mapping[str, Component] = {
    "died_of_signal": "program",
    "crashed_at_exit": "program",
    "user_exception": "code",
    "usage": "code",
    "exit_code": "program",
    "accelerator": "gpu",
    "storage": "storage",
    "out_of_memory": "program",
    "native_crash": "program",
    "damaged_checkpoint": "storage",
    "no_resume_point": "storage",
    "state": "unknown",  # somebody stopped the process
    "dataloader": "program",
    "silent_node": "node",
    "all_arrived": "network",  # or a rank inside the call; NCCL's counters tell, where they are traced
    "nothing_found": "unknown",
    "slow_rank": "unknown",  # GPU, CPU or data: its own work takes longer
    "slower_rank": "unknown",
    "slow_node": "node",
    "slower_node": "node",
    "slower_group": "network",
    "slower_stage": "program",  # all ranks of a stage on several nodes: what they do, not where
    "slower_all": "unknown",
    "slower_than_planned": "unknown",
    "slow_drift": "program",  # leaks and fragments grow like this
    "uneven_stages": "program",
    "held_up": "cpu",
    "last-start": "unknown",
    "last-end": "unknown",
    "dead_link": "network",
    "unreachable_node": "network",
    "dead_links": "network",
    "node_lost": "node",
    "node_fenced": "network",  # the node lived and could not reach the controller
    "node_left": "unknown",  # it was told to go
    "node_evicted": "node",
    "operator": "unknown",  # no fault: people asked for it
    "journal_behind": "unknown",
    "platform": "node",  # what the launcher needs there could not be started
    "unexplained": "unknown",
    "only_peer_errors": "unknown",
    "not_finite": "code",
    "slower_version": "code",
    "lacking_version": "storage",  # a node could not get its files
    "nccl_gpu_rank": "gpu",
    "nccl_gpu_node": "gpu",
    "nccl_gpu_everybody": "unknown",
    "nccl_proxy_rank": "cpu",  # its proxy thread is stopped, or has no CPU
    "nccl_proxy_node": "cpu",
    "nccl_late_node": "node",
    "nccl_dead_node": "node",
    "nccl_unseen_node": "node",
    "nccl_unseen_rank": "unknown",
    "nccl_dead_rank": "program",
    "nccl_late_rank": "program",
    "nccl_missing_member": "program",
    "nccl_circle": "program",
    "nccl_common_peer": "network",
    "nccl_common_node": "network",
    "nccl_between_nodes": "network",
    "nccl_pair": "network",
    "nccl_spatial": "network",
    "nccl_sender_not_taken": "network",
    "nccl_local_network": "gpu",  # within a node ranks talk over NVLink or shared memory
}
"""By the rule that spoke (docs/verdicts.md), where the evidence says nothing finer."""

KINDS: Mapping[VerdictKind, Component] = {
    "crash": "program",
    "stopped": "unknown",
    "hang": "program",
    "mismatch": "program",
    "desync": "program",
    "comm_stall": "network",
    "slow": "unknown",
    "node_lost": "node",
    "node_fault": "node",
    "nan": "unknown",
    "code": "code",
    "unknown": "unknown",
}
"""By kind, for rules that have no row: those of a file of rules, and of later versions."""


def component_of(kind: VerdictKind, rule: str, trouble: str, *, was_killed: bool = False) -> Component:
    """Return what a fault was in. `was_killed`: the process died of a signal that is sent, not raised by a fault of its own."""
    found = _by_trouble(trouble) or _by_trouble(rule if "." in rule else "")
    if found is not None:
        return found
    if rule == "died_of_signal" and was_killed:
        return "unknown"  # people, a scheduler or the kernel did it
    return RULES.get(rule) or KINDS.get(kind, "unknown")


def _by_trouble(trouble: str) -> Component | None:
    name = trouble.removeprefix("worker.")
    while name:
        if name in TROUBLES:
            return TROUBLES[name]
        name = name.rpartition(".")[0]
    return None
