"""What to do next, by what was found: a table. Pure.

The rule that spoke knows more than the kind of failure, so it is looked up first. `{run}`, `{id}`, `{rank}` and `{node}` in a command
stand for the incident's; a command that needs one that is not known is left out, and so is one that would be refused
(`Accepts`).
"""

from __future__ import annotations

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One thing to do."""

    text: str
    command: str = ""
    needs: str = ""
    """Field of `Accepts`: the step is left out where the command would be refused. Empty: it never is."""
    otherwise: Step | None = None
    """What is said in its place then."""


#: Said only where it left some.
WORDS = "its last words below and at "
#: Said only where ranks were looked at.
BELOW = " (below, “What the ranks were doing”)"

_SEE = Step("See everything that was collected, as text.", "robust incident {id} {run}")
_CHECK = Step(
    "Check the machine; the job keeps running meanwhile.",
    "robust check {run} --node {node}",
    "check",
    Step("Check the machine while nothing trains on it. On {node}:", "robust check"),
)
_EVICT = Step("Should the same node be named again, take it out.", "robust evict {node} {run}", "evict")
_READMIT = Step(
    "Once the machine has been repaired or found sound, let it back in.", "robust readmit {node} {run}", "readmit"
)
_FIX = Step("Fix the code. No node is evicted for it, since it is no fault of a machine.")
_UPDATE = Step("Put the fix in place while the job runs.", "robust update {run} --when now", "update")
ROLLBACK = Step(
    "If the code was changed shortly before, go back to the version before it.",
    "robust code rollback {run}",
    "rollback",
)
TIMELINE = Step("Draw the last calls and steps of all ranks.", "robust timeline {run}")
STORY = Step("Read what happened before and after.", "robust events {run}")

_CHANGED = "Was the code changed shortly before? Look at what it changed."

_STUCK = (
    Step(f"Open the line where the rank was stuck{BELOW}: a lock, a queue, a file, a server that does not answer."),
    Step(
        "If it waits on purpose, do nothing: it has as long as torch gives it, the timeout of its process group "
        "(init_process_group(timeout=...))."
    ),
    Step("If it is stuck for sure, start again now.", "robust restart {run}", "restart"),
    _CHECK,
    _EVICT,
)

BY_RULE: dict[str, tuple[Step, ...]] = {
    "died_of_signal": (
        Step(f"Look at {WORDS}the kernel's log on {{node}}: out of memory kills, segmentation faults, Xid."),
        Step("The same rank or node again points to the machine, changing ranks to the program."),
        _CHECK,
        ROLLBACK,
    ),
    "crashed_at_exit": (
        Step("Nothing runs again, but files never closed may lack their end. Destroy process groups before."),
    ),
    "out_of_memory": (
        Step("Make it fit: a smaller batch, activation checkpointing, more sharding. A restart alone repeats it."),
        Step("Only one rank, and memory is even? Another process may sit on that device or host."),
        _CHECK,
        ROLLBACK,
    ),
    "accelerator": (
        Step("Look for Xid errors and ECC counts of that GPU (nvidia-smi -q, dmesg); the check does."),
        _CHECK,
        _EVICT,
        Step("The same error on changing GPUs is the program's: run it once with CUDA_LAUNCH_BLOCKING=1."),
    ),
    "storage": (
        Step("See whether the file system or object store named below answers from {node} and from the others."),
        Step("A single node that cannot reach it should be taken out.", "robust evict {node} {run}", "evict"),
    ),
    "damaged_checkpoint": (
        Step("robust ckpt verify names all that is wrong with it, robust ckpt repair mends it from a second copy."),
        Step("Look at the disk or file system that it lies on, and at the memory of the node that read it."),
        _CHECK,
    ),
    "no_resume_point": (
        Step("See whether --ckpt-dir is mounted, and can be listed, on each node."),
        Step("Mend a checkpoint (robust ckpt repair), or move all of them away to start from the beginning."),
        STORY,
    ),
    "user_exception": (
        Step("Read the traceback below: the innermost frame of your program is where it was raised."),
        _FIX,
        _UPDATE,
        ROLLBACK,
    ),
    "other_size": (Step("Look for a collective that not all ranks call: who is named may be right."), _FIX, _UPDATE),
    "usage": (Step("The program refuses its arguments or cannot be found: correct the command line and start again."),),
    "tag": (Step("Give the send and the receive the same tag: both lines are below."), _FIX, _UPDATE),
    "lock_circle": (
        Step("Take these locks in the same order in all threads, or give one of the waits a time limit."),
        _FIX,
        _UPDATE,
    ),
    "nobody_sends": (
        Step(
            "Count sends and receives: the rank expects one more than its peers send, or they have gone on without sending."
        ),
        _FIX,
        _UPDATE,
    ),
    "early_exit": (
        Step("One rank left the loop before the others. Give all ranks the same number of steps (drop_last, Join)."),
        _FIX,
        _UPDATE,
    ),
    "leftover": (
        Step(
            "Training is done, and this rank holds up the end of the job: a thread that is no daemon, an exit handler, a lock, an upload. "
            "Open the line where it is (below). The job is never started again for it; if it will not end, stop the job."
        ),
    ),
    "uneven_stages": (
        Step("No machine is at fault: give the stage fewer layers, or the others more."),
        Step("How much a step would be shorter: robust report --what-if."),
    ),
    "slower_stage": (
        Step("Its ranks became slower together, on several nodes: suspect their data or the program first."),
        Step("How much a step would be shorter: robust report --what-if."),
    ),
    "slower_all": (
        Step(
            "No single machine is at fault: look at what all share (storage, the network), at longer data, and at what changed."
        ),
        Step("If ranks wait for data: more loader workers (num_workers), or a copy of the data that is nearer."),
    ),
    "slower_group": (
        Step("No rank works longer: suspect links, switches, or other jobs' traffic."),
        Step("Test the links between nodes while nothing trains.", "robust check {run} --all", "check_all"),
    ),
    "slow_drift": (
        Step("What grows with time: memory that is never freed, logs, lists of a data set, a hot or dusty machine."),
        Step("If a restart makes it fast again, it is the program's; if not, a machine's."),
    ),
    "slower_than_planned": (Step("See what a step consists of: robust report --what-if, robust trace show."),),
    "only_peer_errors": (
        Step("All that is known is that connections broke. Look for a node or link that failed without a word."),
        _CHECK,
        STORY,
    ),
    "dataloader": (
        Step(
            "A DataLoader worker of this rank died or is stuck: look at its stack below and at the node's memory (shared memory, too)."
        ),
        Step("Its own exception is in the rank's stderr.log; num_workers=0 shows it at once."),
        _CHECK,
    ),
    "busy": (
        Step(
            "It burns CPU in one place: an endless loop, or work that takes long. Work is never ended before torch would end the wait."
        ),
        Step("If it is a loop, open the line below."),
        _FIX,
        _UPDATE,
    ),
    "silent_node": (
        Step("Nothing could be learnt from that node: see whether it is up and reachable."),
        _CHECK,
        _EVICT,
    ),
    "slower_version": (
        Step(
            "The version before runs again. Slower on purpose (a larger batch)? Say so when you bring it back:",
            "robust update {run} --slower --again",
            "update",
        ),
    ),
    "lacking_version": (
        Step("See why that node could not put the version in place: disk full, or no way to the others?"),
        _CHECK,
    ),
    "node_fenced": (
        Step("The node was alive but could not reach the controller: look at its network, not at its GPUs."),
        _READMIT,
    ),
    "node_left": (
        Step("The node left in good order (a signal to its robust-run). Nothing to do if that was planned."),
        STORY,
    ),
    "operator": (Step("An operator asked for this restart; it does not count as a failure."), STORY),
    "journal_behind": (
        Step("A controller lost its last lines of the journal. Look at the disk of the run directory."),
        STORY,
    ),
    "platform": (
        Step("The launcher could not start or keep something it needs: the sentence above says what."),
        Step("Limits and full disks are the usual reasons (ulimit -u, ulimit -n, df)."),
        STORY,
    ),
}
"""Advice where the rule tells more than the kind."""

BY_KIND: dict[str, tuple[Step, ...]] = {
    "crash": BY_RULE["died_of_signal"],
    "code": BY_RULE["user_exception"],
    "hang": _STUCK,
    "stopped": (
        Step("The process was stopped: by a debugger, a SIGSTOP, a frozen container or cgroup."),
        Step("A frozen cgroup is thawed as the evidence below says; a stopped process goes on with SIGCONT."),
        Step("If it was you: start with --on-hang report while you debug."),
        _EVICT,
    ),
    "mismatch": (
        Step(
            "Compare the call sites named in the verdict: which tensor has another size, type or root on that rank, and why?"
        ),
        Step("Usual causes: an uneven last batch, a branch on local data, a parameter that is frozen on some ranks."),
        _FIX,
        _UPDATE,
        TIMELINE,
    ),
    "desync": (
        Step(
            "Ranks left the common order of calls. Compare the calls named in the verdict with those of the other ranks."
        ),
        Step(
            "Usual causes: a collective inside a branch that only some ranks take, a swallowed exception, no_sync on one rank."
        ),
        _FIX,
        _UPDATE,
        TIMELINE,
    ),
    "comm_stall": (
        Step("All ranks had come and nothing moved: suspect network, NIC or GPU of the ranks named, not the program."),
        _CHECK,
        Step("Test the links between nodes as well.", "robust check {run} --all", "check_all"),
        _EVICT,
    ),
    "slow": (
        Step("Compare the rank's own times in the step heat-map: one dark row is a machine, a band of rows a node."),
        _CHECK,
        Step(
            "Have such nodes replaced by standbys without asking: start with --on-slow evict, or diagnose to check first."
        ),
        _EVICT,
    ),
    "node_lost": (
        Step("See whether the machine is up: power, kernel log, its console. It is not needed for the job to go on."),
        Step(
            "When it is back, look at it before it is used again.",
            "robust check {run} --node {node}",
            "check",
            Step("When it is back, look at it before it is used again. On {node}:", "robust check"),
        ),
        Step("No standby was left? Start one more agent with the same command; it stands by.", needs="join"),
        _READMIT,
    ),
    "node_fault": (
        Step("Have the machine looked at before it is used again."),
        _CHECK,
        _READMIT,
    ),
    "nan": (
        Step(
            _CHANGED,
            "robust code log {run}",
            "code_log",
            Step(_CHANGED),
        ),
        Step(
            "Usual causes: a loss scale or learning rate that is too large, a division by zero, a log of zero, an uninitialised buffer."
        ),
        Step(
            "Sound code and still NaN? Silent data corruption is possible: let the nodes compare results bit by bit.",
            "robust check {run} --all",
            "check_all",
            Step(
                "Sound code and still NaN? Silent data corruption is possible: check the machines, each while it is idle."
            ),
        ),
        _UPDATE,
    ),
    "unknown": (_SEE, STORY, Step("Does it repeat? The second time tells whether a node or the program repeats it.")),
}
"""Advice for every kind of verdict."""

ROLLED_BACK = Step(
    "The version before runs again. See what the one that was taken back had changed.",
    "robust code log {run}",
    "code_log",
)
START_AGAIN = Step("The job is over. Once this is mended, start it again with the command that started it.")
