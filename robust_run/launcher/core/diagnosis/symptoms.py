"""What else is known of an attempt that ended badly: what the rules make of a worker's last words, and what the sensors of its
node saw around that time. Pure.

A symptom is never taken for the cause: what was seen stands beside the verdict as evidence, and only a rule that is sure of the
machine changes who is held responsible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from robust_run.health.rules import deciding, workers
from robust_run.health.types import NOT_THE_JOBS
from robust_run.launcher.core.diagnosis.drafts import TRAINING, said_by
from robust_run.launcher.core.diagnosis.health import held, memory_s, spoken
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.membership import evict, node_of_rank
from robust_run.launcher.core.state import CorePolicy, Eviction, JobState
from robust_run.launcher.model.actions import Action, Say
from robust_run.launcher.model.health_events import RuleEviction, Sign
from robust_run.launcher.model.job import RankEvidence, VerdictDraft

if TYPE_CHECKING:
    from robust_run.health.rules.types import RuleDecision
    from robust_run.launcher.core.diagnosis.judge import AttemptJudgement

MOST_LINES = 10
#: What makes work wait and ends nothing.
LOADS = ("cpu.", "disk.pressure", "disk.slow_fsync")


def explained(
    policy: CorePolicy, state: JobState, verdict: AttemptJudgement, now_s: float
) -> tuple[AttemptJudgement, list[Action]]:
    """Return the verdict with what rules and sensors add to it, and what is done besides."""
    actions: list[Action] = []
    culprit = verdict.draft.culprit
    if culprit is not None and not verdict.evicts:
        verdict, actions = _by_rule(policy, state, verdict, culprit, now_s)
    onset_s = verdict.onset_at_s if verdict.onset_at_s is not None else now_s
    signs = [
        sign for sign in _around(state, _hosts(state, verdict.draft), onset_s) if _may_explain(sign, verdict.draft)
    ]
    lines = tuple(line for line in (_line(sign, onset_s) for sign in signs) if line not in verdict.draft.evidence)
    if not lines:
        return verdict, actions
    draft = msgspec.structs.replace(verdict.draft, evidence=(*verdict.draft.evidence, *lines[-MOST_LINES:]))
    known = "memory.oom_kill" if draft.rule == "out_of_memory" else ""  # its sentence says so
    weighty = [sign for sign in signs if sign.rung not in ("", "report") and sign.event.name != known]
    if weighty and draft.kind in ("crash", "hang", "unknown", "slow", "comm_stall") and not verdict.evicts:
        clause = f"shortly before, on {weighty[-1].name}: {said_by(weighty[-1].event)}"
        draft = msgspec.structs.replace(draft, aftermath="; ".join(filter(None, (draft.aftermath, clause))))
    return msgspec.structs.replace(verdict, draft=draft), actions


def _hosts(state: JobState, draft: VerdictDraft) -> set[str]:
    return set(draft.nodes) or set(filter(None, (node_of_rank(state, rank) for rank in draft.ranks)))


def _around(state: JobState, hosts: set[str], onset_s: float) -> list[Sign]:
    """Return what was seen on these hosts, all of it where none is named; numbers of an earlier attempt are over."""
    recent = (
        sign
        for sign in state.health.recent
        if (not hosts or sign.name in hosts) and not sign.event.name.startswith(TRAINING)
    )
    return [sign for sign in recent if sign.event.at_s >= onset_s - memory_s(sign) / 2]


def _may_explain(sign: Sign, draft: VerdictDraft) -> bool:
    """Whether what was seen may have to do with how it ended: what concerns others has not, and no load kills a process."""
    name = sign.event.name
    return not name.endswith(NOT_THE_JOBS) and not (draft.kind == "crash" and name.startswith(LOADS))


def _line(sign: Sign, onset_s: float) -> str:
    apart_s = sign.event.at_s - onset_s
    when = f"{abs(apart_s):.1f} s {'after' if apart_s > 0 else 'before'} it"
    return f"on {sign.name}, {when}: {said_by(sign.event)}"


def _by_rule(
    policy: CorePolicy, state: JobState, verdict: AttemptJudgement, culprit: RankEvidence, now_s: float
) -> tuple[AttemptJudgement, list[Action]]:
    """Ask the table about how the rank at fault ended."""
    name = node_of_rank(state, culprit.rank)
    recent = (sign.event for sign in state.health.recent if sign.name == name)
    seen = [event for event in recent if not event.name.endswith(NOT_THE_JOBS)]
    event = workers.event_of(culprit.rank, culprit.pid, culprit.exit_code, culprit.finding, seen, culprit.exited_at_s)
    if event is None:
        return verdict, []
    counts, decision = deciding.decide(book_of(policy), state.health.counts, name, event, now_s)
    state.health.counts = dict(counts)
    if decision is None:
        return verdict, []
    decision = held(policy, state, decision, now_s)
    draft = verdict.draft
    if decision.rule in ("worker.user_exception", "worker.usage"):
        return verdict, [spoken(decision)]  # its traceback says it all
    also = [f"rule {decision.rule}: {decision.rung}" + (f" ({decision.held_back})" * bool(decision.held_back))]
    if event.name != "worker.host_memory" or culprit.exit_code not in workers.KILLED:
        also.insert(0, f"the line that decided: {event.detail}")
    elif culprit.finding is None or culprit.finding.trouble != "host_memory":
        draft = msgspec.structs.replace(draft, rule="out_of_memory", sentence=f"{draft.sentence}: {event.detail}")
    draft = msgspec.structs.replace(draft, evidence=(*draft.evidence, *also))
    verdict = msgspec.structs.replace(verdict, draft=draft)
    if decision.rung != "evict":
        return verdict, [spoken(decision)]
    return _evicting(state, verdict, decision, now_s)


def _evicting(
    state: JobState, verdict: AttemptJudgement, decision: RuleDecision, now_s: float
) -> tuple[AttemptJudgement, list[Action]]:
    """The attempt is over: the next one does without the node."""
    name = decision.node
    state.health.evicted.append(RuleEviction(name=name, rule=decision.rule, at_s=now_s))
    on_record = evict(state, name, Eviction(reason=decision.sentence, by=f"rule {decision.rule}"))
    there = [m.info.id for m in state.members.values() if m.info.name == name and m.present]
    says: list[Action] = [Say(text=f"{name} is evicted from the job: {decision.sentence}", node=node) for node in there]
    draft = msgspec.structs.replace(verdict.draft, kind="node_fault", rule=decision.rule, nodes=(name,))
    verdict = msgspec.structs.replace(verdict, draft=draft, heals=True, evicts=True)
    return verdict, [spoken(decision), *on_record, *says]
