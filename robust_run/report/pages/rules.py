"""What verdicts mean in plain words: a title for the cause, and what the rule that spoke saw. Pure."""

from __future__ import annotations

import re

from robust_run.report.types import Verdict, VerdictKind

KIND_TITLES: dict[VerdictKind, str] = {
    "crash": "The process died",
    "stopped": "The process was stopped",
    "hang": "Stuck, and peers wait",
    "mismatch": "Ranks called different things",
    "desync": "Ranks left the common order",
    "comm_stall": "Communication stands still",
    "slow": "Slower than its peers",
    "node_lost": "The node went away",
    "node_fault": "The node has a fault",
    "nan": "NaN or infinite values",
    "code": "The program raised an exception",
    "unknown": "Not known",
}
"""The cause in three or four words."""

RULES: dict[str, tuple[str, str]] = {
    "died_of_signal": (
        "The process was killed",
        "The rank's process ended by a signal that the launcher had not sent, before any other rank failed.",
    ),
    "user_exception": (
        "The program raised an exception",
        "The first rank that failed shows a Python traceback that is not about CUDA, storage or a broken connection.",
    ),
    "exit_code": (
        "The process ended by itself",
        "The first rank that failed ended with an exit code of its own and said nothing that explains it.",
    ),
    "usage": ("The program refuses to start", "The program refused its arguments or could not be found."),
    "accelerator": ("CUDA or NCCL failed", "The first rank that failed shows an error of CUDA, NCCL or a device."),
    "storage": ("Storage failed", "The first rank that failed shows an error of a file system or an object store."),
    "out_of_memory": (
        "Out of memory",
        "The first rank that failed shows that memory of the host or of its device was used up.",
    ),
    "native_crash": (
        "Crashed in native code",
        "The first rank that failed shows an abort or a fatal signal in compiled code.",
    ),
    "only_peer_errors": (
        "A connection broke",
        "Every rank shows a broken connection and none shows why, so the first one is named.",
    ),
    "exited": ("The process died", "A rank's process was gone while its peers waited for it."),
    "early_exit": ("It ended before the others", "A rank ended well, while others still waited for it in a call."),
    "extra_op": ("One call too many", "Ranks wait in a call after the others have ended well."),
    "state": (
        "The process was stopped",
        "The kernel says that the process is stopped or traced, and its peers wait for it.",
    ),
    "never_joined": (
        "Stuck: it never joined its peers’ call",
        "All waits lead to this rank: everybody else has come to the call, or waits for somebody who waits for it.",
    ),
    "dataloader": (
        "Stuck: its data loader",
        "All waits lead to this rank, and it waits for a process of its own that loads data.",
    ),
    "silent_node": ("Nothing is heard of its node", "All waits lead to ranks of a node that did not answer."),
    "unlogged_wait": (
        "It may wait unseen",
        "All waits lead to these ranks, and they wait in a way that is not recorded.",
    ),
    "busy": (
        "Stuck: it burns CPU in one place",
        "All waits lead to this rank, and it uses CPU in one and the same function.",
    ),
    "signature": (
        "A different call from its peers’",
        "At one place of a group's order of calls, this rank's call has another operation, size, type or root than the others'.",
    ),
    "order": (
        "It left the common order of calls",
        "Ranks wait for each other in a circle, and this rank's order of calls occurs nowhere else.",
    ),
    "cycle": ("Ranks wait in a circle", "Ranks wait for each other in a circle, and no single order is the odd one."),
    "all_arrived": (
        "All have come, nothing moves",
        "Every member of the call has come and it does not move: the network, or a rank inside the call.",
    ),
    "missing-member": ("A member never came", "Communicators inside NCCL show who did not come."),
    "dead_link": (
        "A link carries no data",
        "The kernel sends the same TCP data again and again, and the other end acknowledges none of it.",
    ),
    "unreachable_node": ("A node cannot be reached", "TCP connections of several nodes to this one carry no data."),
    "dead_links": ("Links carry no data", "TCP connections between several nodes carry no data."),
    "node_lost": (
        "The node went silent",
        "The node's agent gave no sign of life for so long that it must have ended its workers by itself.",
    ),
    "node_fenced": ("The node was cut off", "The node could not reach the controller and ended its workers by itself."),
    "node_left": ("The node left", "The node's agent said that it was about to go."),
    "node_evicted": ("The node was evicted", "Somebody, or a rule, took the node out of the job."),
    "operator": ("Somebody asked for it", "A new attempt was asked for by a command or by an update."),
    "journal_behind": ("The journal had lost lines", "Agents ran an attempt that the journal does not know."),
    "platform": ("The launcher could not go on", "Something the launcher needs could not be started or was lost."),
    "unexplained": ("Not known", "The attempt ended, and no rank shows why."),
    "not_finite": (
        "Parameters became NaN or infinite",
        "After an optimizer step of a version on probation, a parameter was NaN or infinite.",
    ),
    "slower_version": (
        "The new version is slower",
        "Steps of a version on probation took much longer than those of the version before.",
    ),
    "lacking_version": (
        "The new version could not be put in place",
        "A node could not get the files of a version on probation.",
    ),
}
"""By rule: the cause in a few words, and what the rule saw."""


def title_of(verdict: Verdict) -> str:
    """Return the cause in a few words."""
    signal = re.search(r"\bdied of (SIG[A-Z0-9]+)", verdict.sentence)
    if verdict.rule == "died_of_signal" and signal is not None:
        return f"Killed by {signal.group(1)}"
    known = RULES.get(verdict.rule)
    if verdict.kind == "nan" and verdict.rule != "not_finite":
        return KIND_TITLES["nan"]
    if verdict.rule.startswith("nccl_"):
        return "Something stands still inside NCCL"
    return known[0] if known is not None else KIND_TITLES.get(verdict.kind, "Not known")


def meaning_of(verdict: Verdict) -> str:
    """Return what the rule saw; nothing for a rule without an entry."""
    if verdict.rule.startswith("nccl_"):
        return "Counters of NCCL's proxy threads and GPUs show who does not do its part of a transfer."
    if verdict.kind == "nan" and verdict.rule != "not_finite":
        return "The program found a value that is NaN or infinite, and ended for it."
    known = RULES.get(verdict.rule)
    return known[1] if known is not None else ""
