"""Cause of an attempt's end: a rank's failure, a node that went, trouble with the platform, or a request. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.core.diagnosis.verdict import attribute, crashed_at_exit, job_exit_code, own_failure
from robust_run.launcher.core.membership import node_of_rank
from robust_run.launcher.core.state import EndCause, JobState
from robust_run.launcher.model.job import RankEvidence, VerdictDraft
from robust_run.tracer.types import TraceVerdict

#: How many of many nodes a sentence names.
SHOWN = 5
#: What is wrong with a machine is seen so soon after, or before, a rank dies of it.
SEEN_WITHIN_S = 15.0

_SYMPTOMS = {
    "lost": "node_lost",
    "fenced": "node_lost",
    "left": "node_left",
    "evicted": "evicted",
    "asked": "operator",
    "behind": "platform",
}

_KINDS: dict[str, Literal["node_lost", "node_fault", "unknown"]] = {
    "lost": "node_lost",
    "fenced": "node_lost",
    "left": "node_lost",
    "evicted": "node_fault",
    "asked": "unknown",
    "behind": "unknown",
}


#: Signals that are sent: HUP, INT, QUIT, KILL, PIPE, ALRM, TERM.
FROM_OUTSIDE = frozenset((1, 2, 3, 9, 13, 14, 15))


class AttemptJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and what it means for the job."""

    draft: VerdictDraft
    symptom: str
    onset_at_s: float | None
    heals: bool = False
    """Not the program's doing: it is always started again."""
    evicts: bool = False
    """The job goes on without the nodes at fault."""


def is_nan(draft: VerdictDraft) -> bool:
    """Whether numbers went wrong: found so, or an exception says so."""
    finding = draft.culprit.finding if draft.culprit is not None else None
    return draft.kind == "nan" or (finding is not None and finding.trouble == "nan")


def is_hang(verdict: AttemptJudgement) -> bool:
    """Whether ranks stood still, and neither the program's calls nor a signal that stopped one are why."""
    kind = verdict.draft.kind
    return kind in ("hang", "comm_stall") or (kind == "unknown" and verdict.symptom == "hang")


def was_sent_a_signal(draft: VerdictDraft) -> bool:
    """Whether the rank at fault was ended from outside: no program and no device raises these signals by a fault of theirs."""
    exit_code = draft.culprit.exit_code if draft.culprit is not None else None
    return draft.rule == "died_of_signal" and exit_code is not None and -exit_code in FROM_OUTSIDE


def judge(state: JobState) -> AttemptJudgement | None:
    """Return the verdict on an attempt that is over, None if it did its work.

    What happened first is the cause: a rank that failed while its node's peers were all there is not excused by a node that
    was lost later, and a rank that failed after a node had gone silent is its victim.
    """
    behind = next((cause for cause in state.causes if cause.kind == "behind"), None)
    if behind is not None:  # all else that is known is of an attempt that was over long ago
        return _from_cause(behind, state)
    if state.all_well or _did_its_work(state):
        return None
    if len(state.evidence) == state.world_size and (draft := crashed_at_exit(tuple(state.evidence))) is not None:
        hosts = tuple(filter(None, (node_of_rank(state, rank) for rank in draft.ranks)))
        onset_at_s = max(rank.exited_at_s for rank in state.evidence)  # until then all went on
        draft = msgspec.structs.replace(draft, nodes=hosts)
        return AttemptJudgement(draft=draft, symptom="worker_failed", onset_at_s=onset_at_s)
    if state.code_fault is not None:
        hosts = tuple(dict.fromkeys(filter(None, (node_of_rank(state, rank) for rank in state.code_fault.ranks))))
        found = msgspec.structs.replace(state.code_fault, nodes=hosts or state.code_fault.nodes)
        heals = bool(state.suspended_for)
        return AttemptJudgement(draft=found, symptom=found.kind, onset_at_s=state.detected_at_s, heals=heals)
    if state.trouble:
        return _platform(state)
    if state.traced is not None and (state.is_traced_end or not state.causes):
        return _from_trace(state.traced, state)
    cause = _first(state.causes)
    draft = attribute(tuple(state.evidence))
    if draft is None:
        return _from_cause(cause, state) if cause is not None else _unexplained(state)
    failure = own_failure(draft.culprit) if draft.culprit is not None else None
    machine = _machine_at_fault(state, draft, failure.at_s if failure is not None else None)
    if machine is not None:
        return _of_machine(machine, draft, state)
    is_first = cause is None or (draft.rule != "only_peer_errors" and failure is not None and failure.at_s < cause.at_s)
    if cause is not None and not is_first:
        return _from_cause(cause, state)
    hosts = tuple(dict.fromkeys(filter(None, (node_of_rank(state, rank) for rank in draft.ranks))))
    aftermath = "; ".join(filter(None, (draft.aftermath, _clauses(state.causes))))
    counted = [rank for rank in state.evidence if not rank.had_ended or rank.rank in draft.ranks]
    failures = filter(None, map(own_failure, counted))
    return AttemptJudgement(
        draft=msgspec.structs.replace(draft, nodes=hosts, aftermath=aftermath),
        symptom="worker_failed",
        onset_at_s=min((each.at_s for each in failures), default=None),
    )


def _first(causes: list[EndCause]) -> EndCause | None:
    """Return what happened first. Nodes that heard of no controller are back; one that stays away is why, if there is one."""
    first = min(causes, key=lambda cause: cause.at_s, default=None)
    if first is None or first.kind != "fenced":
        return first
    return min((cause for cause in causes if cause.kind == "lost"), key=lambda cause: cause.at_s, default=first)


def _machine_at_fault(state: JobState, draft: VerdictDraft, failed_at_s: float | None) -> EndCause | None:
    """Return why the culprit's node was evicted by a rule of health, if that was seen at about the time the rank failed.

    Sensors look every few seconds, so the victim may be seen before the culprit. A program's own exception is no victim.
    """
    if draft.kind == "code" or failed_at_s is None:
        return None
    hosts = {node_of_rank(state, rank) for rank in draft.ranks}
    return next(
        (
            cause
            for cause in state.causes
            if cause.rule and cause.node in hosts and abs(cause.at_s - failed_at_s) <= SEEN_WITHIN_S
        ),
        None,
    )


def _of_machine(cause: EndCause, victim: VerdictDraft, state: JobState) -> AttemptJudgement:
    judged = _from_cause(cause, state)
    aftermath = "; ".join(filter(None, (judged.draft.aftermath, victim.sentence)))
    return msgspec.structs.replace(judged, draft=msgspec.structs.replace(judged.draft, aftermath=aftermath))


def _from_trace(traced: TraceVerdict, state: JobState) -> AttemptJudgement:
    """What the ranks' own records say goes before how they ended: a stuck rank ends of our signal, a misled one of an abort."""
    onset_s = traced.onset_s if state.is_traced_end else None
    return AttemptJudgement(
        draft=draft_of(traced, next((rank for rank in state.evidence if (rank.rank,) == traced.ranks), None)),
        symptom="hang" if state.is_traced_end else "worker_failed",
        onset_at_s=onset_s if onset_s is not None else state.detected_at_s,
        heals=bool(state.evicted_for or state.suspended_for),
        evicts=bool(state.evicted_for),
    )


def draft_of(traced: TraceVerdict, culprit: RankEvidence | None = None) -> VerdictDraft:
    """Return a verdict on evidence as an incident has it."""
    failed = culprit is not None and culprit.exit_code not in (0, None) and culprit.signalled_at_s is None
    return VerdictDraft(
        kind=traced.kind,
        ranks=traced.ranks,
        nodes=traced.nodes,
        confidence=traced.confidence,
        rule=traced.rule,
        sentence=traced.sentence,
        group=traced.group,
        over_evicted=traced.over_evicted,
        evidence=traced.evidence,
        exit_code=job_exit_code(culprit.exit_code) if failed and culprit is not None else 1,
        culprit=culprit if failed else None,
    )


def _did_its_work(state: JobState) -> bool:
    """Whether every rank ended well by itself, even if a node was cut off before it could say so."""
    return len(state.evidence) == state.world_size and all(
        rank.exit_code == 0 and (rank.signalled_at_s is None or rank.exited_at_s <= rank.signalled_at_s)
        for rank in state.evidence
    )


def _unexplained(state: JobState) -> AttemptJudgement:
    """Nothing was seen to fail, and yet the work is not done."""
    draft = VerdictDraft(
        kind="unknown",
        ranks=(),
        confidence="low",
        rule="unexplained",
        sentence="the attempt ended and no rank shows why",
        exit_code=1,
    )
    return AttemptJudgement(draft=draft, symptom="worker_failed", onset_at_s=state.detected_at_s)


def _platform(state: JobState) -> AttemptJudgement:
    draft = VerdictDraft(
        kind="node_fault", ranks=(), confidence="high", rule="platform", sentence=state.trouble, exit_code=1
    )
    return AttemptJudgement(draft=draft, symptom="platform", onset_at_s=state.detected_at_s)


def _from_cause(cause: EndCause, state: JobState) -> AttemptJudgement:
    same = [each for each in state.causes if each.kind == cause.kind]
    hosts = tuple(dict.fromkeys(each.node for each in same if each.node))
    sentence = f"{_named(hosts)} {_plural(cause)}" if len(hosts) > 1 else cause.text
    if cause.kind == "fenced" and not hosts:
        sentence = _clauses(same)
    if stood_s := max((each.stood_s for each in same), default=0.0):
        stood = f"the controller had stood still itself for {stood_s:.1f} s"
        sentence += f"; {stood}: was its machine suspended, moved or overloaded?"
    others = [each for each in state.causes if each.kind != cause.kind]
    if cause.kind == "fenced" and len(hosts) == len(state.layout) > 1:
        sentence, hosts = f"no controller could be reached: {sentence}", ()  # not one of them is to blame
    draft = VerdictDraft(
        kind=_KINDS[cause.kind],
        ranks=tuple(sorted({rank for each in same for rank in each.ranks})),
        nodes=hosts,
        confidence="high",
        rule=cause.rule or {"asked": "operator", "behind": "journal_behind"}.get(cause.kind, f"node_{cause.kind}"),
        sentence=sentence,
        aftermath=_clauses(others),
        exit_code=1,
    )
    gone = cause.kind in ("lost", "evicted")
    return AttemptJudgement(draft=draft, symptom=_SYMPTOMS[cause.kind], onset_at_s=cause.at_s, heals=True, evicts=gone)


def _named(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:SHOWN])
    return f"{len(hosts)} nodes ({shown}{', ...' if len(hosts) > SHOWN else ''})"


def _plural(cause: EndCause) -> str:
    return {
        "lost": "stopped answering",
        "fenced": "could not reach the controller and ended their workers",
        "left": "left",
        "evicted": "were evicted",
        "asked": "",
        "behind": "",
    }[cause.kind]


def _clauses(causes: list[EndCause]) -> str:
    more = f"; and {len(causes) - SHOWN} more" if len(causes) > SHOWN else ""
    return "; ".join(cause.text for cause in causes[:SHOWN]) + more
