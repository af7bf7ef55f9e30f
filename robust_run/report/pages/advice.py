"""What to do next, by what was found: a table. Pure.

The rule that spoke knows more than the kind of failure, so it is looked up first. `{run}`, `{id}`, `{rank}` and `{node}` in a command
stand for the incident's; a command that needs one that is not known is left out, and so is one that needs a job that runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.report.pages.types import IncidentPage


class Step(msgspec.Struct, frozen=True):
    """One thing to do."""

    text: str
    command: str = ""
    needs_live: bool = False
    """The command asks the job's controller."""


#: Said only where it left some.
_WORDS = "its last words below and at "

_SEE = Step("See everything that was collected, as text.", "robust incident {id} {run}")
_CHECK = Step(
    "Check the machine; the job keeps running meanwhile.", "robust check {run} --node {node}", needs_live=True
)
_EVICT = Step("Should the same node be named again, take it out.", "robust evict {node} {run}", needs_live=True)
_READMIT = Step(
    "Once the machine has been repaired or found sound, let it back in.", "robust readmit {node} {run}", needs_live=True
)
_FIX = Step("Fix the code. No node is evicted for it, since it is no fault of a machine.")
_UPDATE = Step("Put the fix in place while the job runs.", "robust update {run} --when now", needs_live=True)
_ROLLBACK = Step(
    "If the code was changed shortly before, go back to the version before it.",
    "robust code rollback {run}",
    needs_live=True,
)
_TIMELINE = Step("Draw the last calls and steps of all ranks.", "robust timeline {run}")
_STORY = Step("Read what happened before and after.", "robust events {run}")

_STUCK = (
    Step(
        "Open the line where the rank was stuck (below, “What the ranks were doing”): a lock, a queue, a file, a server that does not answer."
    ),
    Step(
        "If it waits for data or a service on purpose, give it longer: start with --hang-after SECONDS, or --on-hang report."
    ),
    _CHECK,
    _EVICT,
)

BY_RULE: dict[str, tuple[Step, ...]] = {
    "died_of_signal": (
        Step(f"Look at {_WORDS}the kernel's log on {{node}}: out of memory kills, segmentation faults, Xid."),
        Step("The same rank or node again points to the machine, changing ranks to the program."),
        _CHECK,
        _ROLLBACK,
    ),
    "out_of_memory": (
        Step("Make it fit: a smaller batch, activation checkpointing, more sharding. A restart alone repeats it."),
        Step("Only one rank, and memory is even? Another process may sit on that device or host."),
        _CHECK,
        _ROLLBACK,
    ),
    "accelerator": (
        Step("Look for Xid errors and ECC counts of that GPU (nvidia-smi -q, dmesg); the check does."),
        _CHECK,
        _EVICT,
        Step("The same error on changing GPUs is the program's: run it once with CUDA_LAUNCH_BLOCKING=1."),
    ),
    "storage": (
        Step("See whether the file system or object store named below answers from {node} and from the others."),
        Step("A single node that cannot reach it should be taken out.", "robust evict {node} {run}", needs_live=True),
    ),
    "user_exception": (
        Step("Read the traceback below: the innermost frame of your program is where it was raised."),
        _FIX,
        _UPDATE,
        _ROLLBACK,
    ),
    "usage": (Step("The program refuses its arguments or cannot be found: correct the command line and start again."),),
    "early_exit": (
        Step("One rank left the loop before the others. Give all ranks the same number of steps (drop_last, Join)."),
        _FIX,
        _UPDATE,
    ),
    "only_peer_errors": (
        Step("All that is known is that connections broke. Look for a node or link that failed without a word."),
        _CHECK,
        _STORY,
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
            "It burns CPU in one place: an endless loop, or work that takes long. If it is work, let the others wait longer (--hang-after)."
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
    "signature": (
        Step(
            "Compare the call sites named in the verdict: which tensor has another size, type or root on that rank, and why?"
        ),
        Step("Usual causes: an uneven last batch, a branch on local data, a parameter that is frozen on some ranks."),
        _FIX,
        _UPDATE,
        _TIMELINE,
    ),
    "slower_version": (
        Step(
            "The version before runs again. Slower on purpose (a larger batch)? Say so when you bring it back:",
            "robust update {run} --slower --again",
            needs_live=True,
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
        _STORY,
    ),
    "operator": (Step("Somebody asked for this restart; it does not count as a failure."), _STORY),
    "journal_behind": (
        Step("A controller lost its last lines of the journal. Look at the disk of the run directory."),
        _STORY,
    ),
    "platform": (
        Step("The launcher could not start or keep something it needs: the sentence above says what."),
        Step("Limits and full disks are the usual reasons (ulimit -u, ulimit -n, df)."),
        _STORY,
    ),
}
"""Advice where the rule tells more than the kind."""

BY_KIND: dict[str, tuple[Step, ...]] = {
    "crash": BY_RULE["died_of_signal"],
    "code": BY_RULE["user_exception"],
    "hang": _STUCK,
    "stopped": (
        Step("Somebody or something stopped the process: a debugger, a SIGSTOP, a frozen container or cgroup."),
        Step("If it was you: start with --on-hang report while you debug."),
        _EVICT,
    ),
    "mismatch": BY_RULE["signature"],
    "desync": (
        Step(
            "Ranks left the common order of calls. Compare the calls named in the verdict with those of the other ranks."
        ),
        Step(
            "Usual causes: a collective inside a branch that only some ranks take, a swallowed exception, no_sync on one rank."
        ),
        _FIX,
        _UPDATE,
        _TIMELINE,
    ),
    "comm_stall": (
        Step("All ranks had come and nothing moved: suspect network, NIC or GPU of the ranks named, not the program."),
        _CHECK,
        Step("Test the links between nodes as well.", "robust check {run} --all", needs_live=True),
        _EVICT,
    ),
    "slow": (
        Step("Compare the rank's own times in the step heat-map: one dark row is a machine, a band of rows a node."),
        _CHECK,
        Step("Have such nodes replaced by standbys without asking: start with --on-slow evict."),
        _EVICT,
    ),
    "node_lost": (
        Step("See whether the machine is up: power, kernel log, its console. It is not needed for the job to go on."),
        Step(
            "When it is back, look at it before it is used again.", "robust check {run} --node {node}", needs_live=True
        ),
        Step("No standby was left? Start one more agent with the same command; it stands by."),
        _READMIT,
    ),
    "node_fault": (
        Step("Have the machine looked at; until then it is not used by this job."),
        _CHECK,
        _READMIT,
    ),
    "nan": (
        Step("Was the code changed shortly before? Look at what it changed.", "robust code log {run}"),
        Step(
            "Usual causes: a loss scale or learning rate that is too large, a division by zero, a log of zero, an uninitialised buffer."
        ),
        Step(
            "Sound code and still NaN? Silent data corruption is possible: let the nodes compare results bit by bit.",
            "robust check {run} --all",
            needs_live=True,
        ),
        _UPDATE,
    ),
    "unknown": (_SEE, _STORY, Step("Does it repeat? The second time tells whether a node or the program repeats it.")),
}
"""Advice for every kind of verdict."""

ROLLED_BACK = Step(
    "The version before runs again. See what the one that was taken back had changed.", "robust code log {run}"
)


def steps_for(page: IncidentPage, most: int = 4) -> tuple[Step, ...]:
    """Return what to do about an incident, the first thing first, with commands that can be typed as they are."""
    incident = page.incident
    verdict = incident.verdict
    # That a program raised an exception says less than that it raised it for a NaN.
    of_rule = None if verdict.kind == "nan" else BY_RULE.get(verdict.rule)
    chosen: Sequence[Step] = of_rule or BY_KIND.get(verdict.kind, BY_KIND["unknown"])
    if incident.action.name == "rollback":
        chosen = [ROLLED_BACK, *(step for step in chosen if step not in (_ROLLBACK, BY_KIND["nan"][0]))]
    if incident.action.name == "stop":
        chosen = [
            *chosen,
            Step("The job has ended; go on from its journal when it is mended.", "robust-run --resume {run}"),
        ]
    values = {"run": shlex.quote(page.run), "id": str(incident.id)}
    if verdict.ranks:
        values["rank"] = str(verdict.ranks[0])
    if verdict.nodes:
        values["node"] = shlex.quote(verdict.nodes[0])
    if not any(each.text for each in incident.evidence):
        chosen = [msgspec.structs.replace(step, text=step.text.replace(_WORDS, "")) for step in chosen]
    filled = [_filled(step, values, page.is_live) for step in chosen]
    found = [step for step in filled if step is not None]
    if len(found) < most and not any(step.command for step in found):
        look = _filled(_TIMELINE if page.scene is not None else _STORY, values, page.is_live)
        found += [look] if look is not None else []
    return tuple(found[:most])


def _filled(step: Step, values: Mapping[str, str], is_live: bool) -> Step | None:
    """Put names in; None for a step whose command cannot be given and whose text says nothing without it."""
    wanted = {name for name in ("run", "id", "rank", "node") if f"{{{name}}}" in step.command}
    text = step.text.replace("{node}", values.get("node", "its node"))
    if not step.command:
        return Step(text)
    if not wanted <= set(values) or (step.needs_live and not is_live):
        return None
    command = step.command
    for name, value in values.items():
        command = command.replace(f"{{{name}}}", value)
    return Step(text, command, step.needs_live)
