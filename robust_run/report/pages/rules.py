"""What verdicts mean in plain words: a title for the cause, and what the rule that spoke saw. Pure."""

from __future__ import annotations

import re

from robust_run.report.types import Verdict, VerdictKind

KIND_WORDS: dict[VerdictKind, str] = {
    "crash": "crash",
    "stopped": "stopped process",
    "hang": "hang",
    "mismatch": "collective mismatch",
    "desync": "ranks out of order",
    "comm_stall": "communication stall",
    "slow": "slow rank",
    "node_lost": "node lost",
    "node_fault": "node fault",
    "nan": "not a number",
    "code": "error in the program",
    "unknown": "cause unknown",
}
"""Each kind in a word or two."""

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
    "crashed_at_exit": (
        "Crashed when the program had ended",
        "The rank's program ran to its end, and its process died of a signal while its interpreter cleaned up: in a destructor, "
        "a thread of a library, a driver. The other ranks went on to their end, and nothing is trained again.",
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
    "damaged_checkpoint": (
        "A checkpoint is damaged",
        "A rank could not read what the attempt was to start from: it is not what was saved. Older checkpoints are tried.",
    ),
    "no_resume_point": (
        "There is nothing to start from",
        "The nodes could not look at --ckpt-dir, or none of the checkpoints there can be used. Nothing begins anew by itself.",
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
    "leftover": (
        "It still runs when the others have ended",
        "Most ranks have ended with exit code 0, and this one has not for at least 5 s.",
    ),
    "extra_op": (
        "One call too many",
        "Ranks wait in a call that the others do not make: they have ended well, or are one place further on.",
    ),
    "state": (
        "The process was stopped",
        "The kernel says that the process is stopped or traced, and its peers wait for it.",
    ),
    "never_joined": (
        "Stuck: it never joined its peers’ call",
        "All waits lead to this rank: all others have come to the call, or wait for a rank that waits for it.",
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
    "behind": (
        "Behind its peers",
        "What its peers have begun in a group is not done, since this rank has not come; no call shows that they wait.",
    ),
    "busy": (
        "Stuck: it burns CPU in one place",
        "All waits lead to this rank, and it uses CPU in one and the same function.",
    ),
    "signature": (
        "A different call from its peers’",
        "At one place of a group's order of calls, this rank's call has another operation, size, type or root than the others'. "
        "Of kind `desync`: it left out a call or made one too many, and which of the two is open.",
    ),
    "beside_backward": (
        "A call beside the backward pass",
        "gloo got data of another size than a call expects: ranks were in a collective of the program's own where the others "
        "were in the backward pass of DistributedDataParallel.",
    ),
    "other_size": (
        "Ranks called different things",
        "gloo got data of another size than the call of these ranks expects, and no record tells which ranks called what.",
    ),
    "skipped_op": (
        "It left out a call",
        "This rank's next calls are those that its peers make one place later in a group's order of calls.",
    ),
    "tag": (
        "A send and a receive with different tags",
        "A rank sends to a peer that receives from it, with another tag: the two never meet, and each waits for the other.",
    ),
    "lock_circle": (
        "Threads hold each other’s locks",
        "The rank's main thread waits for a lock whose owner waits for a lock that one of them holds: nothing can wake it.",
    ),
    "nobody_sends": (
        "No rank is left that could send",
        "A rank receives from any rank, and all that could send wait for it, directly or through others.",
    ),
    "order": (
        "It left the common order of calls",
        "Ranks wait for each other in a circle, and this rank's order of calls occurs nowhere else, or it went on without "
        "a call that most others are in.",
    ),
    "cycle": ("Ranks wait in a circle", "Ranks wait for each other in a circle, and no single order is the odd one."),
    "all_arrived": (
        "All have come, nothing moves",
        "Every member of the call has come and it does not move: the network, or a rank inside the call.",
    ),
    "nothing_found": (
        "Nothing says why",
        "Ranks wait for longer than is usual, and no rule finds anybody who keeps them waiting.",
    ),
    "slow_rank": (
        "A slow rank",
        "Round after round, its own work for a step takes longer than that of ranks that do the same work.",
    ),
    "slow_node": (
        "A slow node",
        "Round after round, the own work of most of its ranks takes longer than that of ranks that do the same work.",
    ),
    "slower_rank": (
        "A rank has become slower",
        "Steps take longer than they took, because the own work of these ranks does.",
    ),
    "slower_node": (
        "A node has become slower",
        "Steps take longer than they took, because the own work of the node's ranks does, or a sensor of the node says why.",
    ),
    "slower_stage": (
        "A stage has become slower",
        "Steps take longer than they took, because the own work of all ranks of one pipeline stage does, on several nodes.",
    ),
    "slower_group": (
        "Communication takes longer",
        "Steps take longer than they took, no rank works longer, and all wait longer for each other.",
    ),
    "slower_all": (
        "All ranks have become slower",
        "Steps take longer than they took, and the own work of (nearly) all ranks does: what they share, or the program.",
    ),
    "slower_than_planned": (
        "Slower than planned",
        "Steps take longer than the script said that was planned, since the attempt began.",
    ),
    "slow_drift": (
        "Steps slowly become longer",
        "Over all of the attempt steps have become longer little by little.",
    ),
    "held_up": (
        "A node is hardly let run",
        "No step is made, all others wait, and a sensor of the node that they wait for says that it is not let run.",
    ),
    "uneven_stages": (
        "A stage has more work than the others",
        "All ranks of a pipeline stage work longer than those of the other stages, in all steps: the model is cut unevenly.",
    ),
    "last-start": (
        "Always the last to start",
        "Operation after operation inside NCCL, this rank starts after all its peers.",
    ),
    "last-end": (
        "Always the last to end",
        "Operation after operation inside NCCL, this rank ends after all its peers.",
    ),
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
    "node_evicted": ("The node was evicted", "A user, or a rule, took the node out of the job."),
    "operator": ("An operator asked for it", "A new attempt was asked for by a command or by an update."),
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

NCCL_RULES: dict[str, str] = {
    "late_rank": "A rank did not make the call: its peers have offered data that it never asked for.",
    "late_node": "No rank of a node made the call.",
    "missing_member": "A rank did not make the call, and NCCL shows only that, not which.",
    "gpu_rank": "A rank's proxy thread offers buffers that its GPU does not fill or empty.",
    "gpu_node": "The same on all ranks of a node.",
    "gpu_everybody": "No GPU of the communicator goes on: what they all wait for is not to be seen inside NCCL.",
    "proxy_rank": "A rank's proxy thread offers nothing though its GPU has begun: stopped, or without a CPU.",
    "proxy_node": "The same on all ranks of a node.",
    "dead_rank": "A rank's process has ended, and its peers wait for its data.",
    "dead_node": "All processes of a node have ended.",
    "unseen_rank": "The others wait for a rank of which nothing is known.",
    "unseen_node": "The others wait for a node of which nothing is known.",
    "common_peer": "Several connections stand still, and one rank is an end of all of them.",
    "common_node": "Several connections stand still, and one node is an end of most of them.",
    "between_nodes": "Several connections between two nodes stand still; nothing tells which end it is.",
    "pair": "One connection stands still; nothing tells which end it is.",
    "spatial": "Data sent to this rank does not arrive, and all that it sends itself does.",
    "sender_not_taken": "The network takes none of what this rank offers.",
    "local_network": "A rank's connection within its node stands still.",
    "circle": "Ranks wait for each other in a circle inside NCCL.",
}
"""What rules that look inside NCCL saw; as rules of a verdict they begin with `nccl_`."""


def title_of(verdict: Verdict) -> str:
    """Return the cause in a few words."""
    signal = re.search(r"\b(?:died of|was killed by) (SIG[A-Z0-9]+)", verdict.sentence)
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
        said = NCCL_RULES.get(verdict.rule.removeprefix("nccl_"), "")
        return f"Counters of NCCL's proxy threads and GPUs show who does not do its part of a transfer. {said}".strip()
    if verdict.kind == "nan" and verdict.rule != "not_finite":
        return "The program found a value that is NaN or infinite, and ended for it."
    known = RULES.get(verdict.rule)
    return known[1] if known is not None else ""
