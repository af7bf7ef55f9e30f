"""Test of a node by a standby: what fails again and again on one node runs once where that node is not. Pure.

Checks find most faults of hardware and not all, and a bug that only rank 0 has looks like a fault of its node. What tells the
two apart costs nothing where a restart is due anyway: another node takes the place. If the same ranks fail there too, the fault
goes with them: the node is as good as any, and no second standby is used up for them (`FOLLOWS_S`). If not, it stays aside.

Set aside is not evicted: nothing outside the job hears of it, and the node is taken again, last, where no other is left.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.ladder.step import most_evicted
from robust_run.health.ladder.types import SwapWhen
from robust_run.launcher.core.diagnosis.judge import AttemptJudgement, was_sent_a_signal
from robust_run.launcher.core.ladder.ladder_state import LadderState, Repeat, SwapTest
from robust_run.launcher.core.ladder.suspects import to_blame
from robust_run.launcher.core.membership import counts, name_of, placement_of, ranks_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, Say

#: Failures on the same node that are further apart have nothing to do with each other.
AGAIN_S = 3600.0
#: So many there, with progress between, are worth a standby: a program's own bug comes back on it, and that is known then.
LEAST = 2
#: Ranks that were tested are not tested again for so long.
FOLLOWS_S = 12 * 3600.0
#: So many nodes, and tests, are remembered, the newest.
MOST = 64
#: What a machine may do to a rank; memory that is full and words of a program are not among it.
OF_MACHINES = frozenset(("accelerator", "native_crash", "storage"))


def failed_on(state: JobState, verdict: AttemptJudgement) -> str:
    """Return the one host on which a rank failed as it may where a machine is at fault; empty: it is not such a failure."""
    draft = verdict.draft
    if draft.kind != "crash" or verdict.heals or verdict.evicts or was_sent_a_signal(draft) or draft.culprit is None:
        return ""
    finding = draft.culprit.finding
    is_signal = draft.rule == "died_of_signal"
    if not is_signal and (finding is None or finding.kind not in OF_MACHINES):
        return ""
    named = to_blame(state, draft.nodes)
    return named[0] if len(named) == 1 else ""


def noted(
    policy: CorePolicy, state: JobState, ladder_state: LadderState, verdict: AttemptJudgement, now_s: float
) -> tuple[LadderState, list[Action]]:
    """Count a failure of its node; say so where it is the answer to a test."""
    host = failed_on(state, verdict) if policy.many else ""
    if not host:
        return ladder_state, []
    before = ladder_state.repeats.get(host)
    count = before.count + 1 if before is not None and now_s - before.at_s <= AGAIN_S else 1
    others = {name: one for name, one in ladder_state.repeats.items() if name != host}
    newest = dict([*others.items(), (host, Repeat(count=count, at_s=now_s))][-MOST:])
    return _answered(state, msgspec.structs.replace(ladder_state, repeats=newest), verdict, host, now_s)


def _answered(
    state: JobState, ladder_state: LadderState, verdict: AttemptJudgement, host: str, now_s: float
) -> tuple[LadderState, list[Action]]:
    test = _test_of(ladder_state, verdict, now_s)
    if test is None or test.goes_along or test.node == host:
        return ladder_state, []
    for member in state.members.values():
        if member.info.name == test.node:
            member.aside = ""
    rank = verdict.draft.ranks[0]
    known = (
        f"rank {rank} failed on {host} as it had on {test.node}: it goes with the rank, so it is the program or its data, "
        f"and no node; {test.node} stands by as any other"
    )
    tests = tuple(
        msgspec.structs.replace(each, goes_along=True) if each is test else each for each in ladder_state.tests
    )
    ladder = ladder_state.ladder
    if ladder.decisions:
        ladder = msgspec.structs.replace(ladder, known=(*ladder.known, known))
    return msgspec.structs.replace(ladder_state, tests=tests, ladder=ladder, answer=known), [Say(text=known)]


def _test_of(ladder_state: LadderState, verdict: AttemptJudgement, now_s: float) -> SwapTest | None:
    """Return the newest test of the ranks that failed."""
    ranks = set(verdict.draft.ranks)
    return next(
        (each for each in reversed(ladder_state.tests) if now_s - each.at_s < FOLLOWS_S and ranks & set(each.ranks)),
        None,
    )


def when(
    policy: CorePolicy,
    state: JobState,
    ladder_state: LadderState,
    verdict: AttemptJudgement,
    now_s: float,
    *,
    progressed: bool,
    crashed: str,
    standing: Literal["goes_on", "spent", "over"],
) -> tuple[SwapWhen, str]:
    """Return whether a standby is to take the place of the node that failed, and which that is.

    `crashed`: as the ladder remembers the failure. `standing`: the job is started again; --max-restarts is spent; it ends anyhow.
    """
    host = failed_on(state, verdict) if policy.many and standing != "over" else ""
    if not host or not _may(policy, state) or _test_of(ladder_state, verdict, now_s) is not None:
        return "", ""
    count = ladder_state.repeats[host].count if host in ladder_state.repeats else 1
    if standing == "spent":
        return ("last", host) if count >= LEAST else ("", "")
    if _is_own_disk(state, verdict) and count > LEAST and not _has_new_code(state):
        return "now", host
    if progressed:
        return ("now", host) if crashed == "device" and count >= LEAST and not _has_new_code(state) else ("", "")
    if crashed not in ("device", "memory", "signal"):
        return "", ""
    is_known = count > LEAST and ladder_state.ladder.is_climbing and not _has_new_code(state)
    return ("now" if is_known else "rather"), host  # code that has proven itself is less suspect than that node


def _may(policy: CorePolicy, state: JobState) -> bool:
    """Whether a standby is there that is not needed elsewhere, and rules may take nodes out at all."""
    from robust_run.launcher.core.ladder.suspects import evict_share

    if not most_evicted(evict_share(policy), len(state.layout)):
        return False
    return any(counts(state, m) and m.info.id not in state.places and not m.aside for m in state.members.values())


def _is_own_disk(state: JobState, verdict: AttemptJudgement) -> bool:
    """Whether storage failed elsewhere than where rank 0 is: an outage strikes any node, and rank 0 uses storage most."""
    finding = verdict.draft.culprit.finding if verdict.draft.culprit is not None else None
    is_storage = finding is not None and finding.kind == "storage"
    return is_storage and verdict.draft.ranks[0] not in ranks_of(state.layout[0])


def _has_new_code(state: JobState) -> bool:
    running = state.code.running
    return bool(state.code.pending or (running and state.code.records[running - 1].fate == "probation"))


def begun(
    state: JobState, ladder_state: LadderState, verdict: AttemptJudgement, host: str, now_s: float
) -> LadderState:
    """Return the state with a test under way: it is about all ranks of the node."""
    node = next((each.node for each in state.layout if name_of(state, each.node) == host), "")
    placement = placement_of(state, node)
    ranks = tuple(ranks_of(placement)) if placement is not None else verdict.draft.ranks
    test = SwapTest(node=host, ranks=ranks, at_s=now_s)
    return msgspec.structs.replace(ladder_state, tests=(*ladder_state.tests, test)[-MOST:])


def set_aside(state: JobState, host: str, why: str) -> list[Action]:
    """Have others taken before a host from now on."""
    there = [member for member in state.members.values() if member.info.name == host and member.present]
    for member in there:
        member.aside = why[:500]
        member.checked = ""  # it is checked as any standby is, while the job trains
    text = f"{host} is set aside: {why}; it stands by, and is taken last; robust evict {host} sends it away"
    return [Say(text=text, node=member.info.id) for member in there]


def failures_of(ladder_state: LadderState, hosts: tuple[str, ...]) -> int:
    """Return how many failures were those of hosts that are found to be at fault."""
    return sum(ladder_state.repeats[name].count for name in hosts if name in ladder_state.repeats)
