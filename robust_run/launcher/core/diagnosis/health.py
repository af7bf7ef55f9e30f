"""What follows from what sensors say: the table of rules speaks, its evictions are held to a share of the nodes, and the rest is
remembered, because it may explain what happens next. Pure.

A sign is a symptom. Only a rule may act on it, and each that does is on record (`RuleSpoke`) before anything is done.
"""

from __future__ import annotations

import msgspec

from robust_run.health.outliers import acting
from robust_run.health.outliers.feed import STAYS
from robust_run.health.rules import deciding
from robust_run.health.rules.types import Evicted, RuleDecision
from robust_run.launcher.core import evictions
from robust_run.launcher.core.attempts import end_attempt, failure_ending
from robust_run.launcher.core.diagnosis import blindness, counted, health_record, shared
from robust_run.launcher.core.diagnosis.drafts import TRAINING, draft_of, nodes_of
from robust_run.launcher.core.diagnosis.hang_response import suspected
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.membership import counts, name_of, placement_of
from robust_run.launcher.core.state import LADDER, CorePolicy, JobState
from robust_run.launcher.model.actions import Action, RecordIncident, Say
from robust_run.launcher.model.events import HangSuspected
from robust_run.launcher.model.health_events import HealthSeen, RuleEviction, RuleSpoke, Sign
from robust_run.launcher.model.node_events import NodeEvicted

#: Alerts are remembered so long; what was seen within half of it before a failure may have to do with it.
RECENT_S = 120.0
#: The same of a node that stays apart from its peers: it does so for minutes before it is named.
OUTLIER_S = 1800.0
MOST_RECENT = 500
MOST_ACTIVE = 1000
#: Different things that are told as incidents in one attempt: what hits the whole fleet is told for a few nodes.
MOST_TOLD = 20
#: The loss or gradients jumped and have stayed there since.
JUMP_STAYS = "training.jump.stays"
#: What a sign weighs against its node, where its rule asks for checks; one of low confidence less.
SIGN, SIGN_DOUBTED = 0.5, 0.25
DAMAGED = "training.damaged"
#: What others say than the sensors of a node: who compares nodes, or what ranks have reduced.
NO_SENSORS = ("outlier.", "numbers.")


def seen(policy: CorePolicy, state: JobState, event: HealthSeen, now_s: float) -> list[Action]:
    """Remember what a sensor said, and do what its rule asks for."""
    sign = event.event
    name = name_of(state, event.node)
    blindness.note(state.health, name, event)
    if sign.name == blindness.PROCESS:
        health_record.begin_anew(state, name, but=NO_SENSORS)
    if sign.name == DAMAGED and not event.is_recalled:  # several nodes may read the same file
        is_news = _is_news(state, (f"{sign.name} {sign.kind}", "", sign.subject))
        return [Say(text=f"metrics from {sign.subject}: {sign.detail}")] if is_news else []
    if sign.kind == "note" or sign.name == DAMAGED:
        return []
    if sign.kind == "clear":
        state.health.active.pop((name, sign.name, sign.subject), None)
        return []
    book = book_of(policy)
    counted.take_counted(policy, state, event)
    counts, decision = deciding.decide(book, state.health.counts, name, sign, now_s)
    state.health.counts = state.health.counts if event.is_recalled else dict(counts)
    rung = decision.rung if decision is not None else ""
    _remember(state, Sign(name=name, event=sign, at_unix_s=event.at_unix_s, rung=rung), now_s)
    if decision is None or name in state.evicted or event.is_recalled:
        return []
    decision = held(policy, state, _of_outlier(policy, state, decision, now_s), now_s)
    at = "" if decision.rule.startswith(TRAINING) else decision.node
    is_news = _is_news(
        state, (f"{decision.rule}{' tolerated' if decision.tolerated else ''}", at, decision.event.subject)
    )
    if not is_news and decision.rung != "evict":
        return []
    return [spoken(decision), *_follow(policy, state, event, decision, now_s)]


def spoken(decision: RuleDecision) -> RuleSpoke:
    """Return a decision as it is put on record."""
    return RuleSpoke(
        rule=decision.rule,
        rung=decision.rung,
        confidence=decision.confidence,
        node=decision.node,
        sentence=decision.sentence,
        tolerated=decision.tolerated,
        held_back=decision.held_back,
    )


def _remember(state: JobState, sign: Sign, now_s: float) -> None:
    record = state.health
    key = (sign.name, sign.event.name, sign.event.subject)
    record.active.pop(key, None)
    record.active[key] = sign
    while len(record.active) > MOST_ACTIVE:
        record.active.pop(next(iter(record.active)))
    record.recent = [each for each in record.recent if now_s - each.event.at_s <= memory_s(each)][-MOST_RECENT + 1 :]
    record.recent.append(sign)


def memory_s(sign: Sign) -> float:
    """Return for how long something that was said may explain what happens later. Who stands out is named once."""
    return OUTLIER_S if sign.event.name.startswith("outlier.") else RECENT_S


def _is_news(state: JobState, key: tuple[str, str, str]) -> bool:
    """Whether this (what, host, subject) was not yet told in this attempt, and there is room to tell it."""
    record = state.health
    if record.said_in != state.attempt:
        record.said, record.said_in = set(), state.attempt
    if key in record.said or len(record.said) >= MOST_TOLD * 10:
        return False
    record.said.add(key)
    return True


def _of_outlier(policy: CorePolicy, state: JobState, decision: RuleDecision, now_s: float) -> RuleDecision:
    """Return what `--on-outlier` makes of a node that stays apart; any other decision, or what a rules' file says, as it is."""
    event = decision.event
    if policy.on_outlier == "report" or decision.rule != STAYS or decision.rung != "report":
        return decision
    rung = acting.rung_of(policy.on_outlier, event.name.removeprefix(f"{STAYS}."), event.value, event.limit)
    if rung == "report":
        return decision
    decision = msgspec.structs.replace(decision, rung=rung, confidence="medium")
    if rung == "diagnose":
        return decision
    from robust_run.launcher.core.ladder import suspending

    key = f"{decision.rule} {decision.node}"
    why_not = suspending.why_not(policy, state, key, now_s, checks=False)
    if why_not:
        return _instead(decision, why_not)
    suspending.mark(state, key, now_s)
    return decision


# --- evictions ------------------------------------------------------------------------------------------------------


def held(policy: CorePolicy, state: JobState, decision: RuleDecision, now_s: float) -> RuleDecision:
    """Return the decision, or a report where the eviction would be one too many or leave the job without nodes."""
    if decision.rung != "evict":
        return decision
    if not policy.many:
        return _instead(decision, "the job has no other node")
    excuse = shared.seen_by_others(book_of(policy), state, decision, now_s)
    if excuse:
        return _instead(decision, excuse)
    by_rules = [Evicted(node=each.name, rule=each.rule, at_s=each.at_s) for each in state.health.evicted]
    by_ladder = [name for name, each in state.evicted.items() if each.by == LADDER]
    by_rules += [Evicted(node=name, rule="ladder", at_s=now_s) for name in by_ladder]
    gone = {each.node for each in by_rules if each.node in state.evicted}
    names = {member.info.name for member in state.members.values() if member.present} | gone
    decision = deciding.hold_back(book_of(policy).limits, decision, len(names), by_rules, now_s)
    if decision.rung != "evict" or decision.confidence == "high":
        return decision  # a node that is broken for certain is as good as lost
    left = state.usable - sum(m.info.name == decision.node and counts(state, m) for m in state.members.values())
    return decision if left >= policy.fewest else _instead(decision, "no node can take over")


def _instead(decision: RuleDecision, why: str) -> RuleDecision:
    sentence = f"{decision.sentence}; not evicted: {why}"
    return msgspec.structs.replace(decision, rung="report", held_back=why, sentence=sentence)


def evict(policy: CorePolicy, state: JobState, decision: RuleDecision, at_unix_s: float, now_s: float) -> list[Action]:
    """Take the node out of the job, as an operator would, for the reason that the rule has."""
    name = decision.node
    by = f"rule {decision.rule}"
    state.health.evicted.append(RuleEviction(name=name, rule=decision.rule, at_s=now_s))
    told = NodeEvicted(name=name, reason=decision.sentence, by=by, at_unix_s=at_unix_s)
    actions = evictions.evicted(policy, state, told, now_s)
    onset_s = min(decision.event.at_s, now_s)
    state.causes = [
        msgspec.structs.replace(cause, rule=decision.rule, at_s=onset_s)
        if (cause.kind, cause.node, cause.rule) == ("evicted", name, "")
        else cause
        for cause in state.causes
    ]
    return actions


# --- what else follows ----------------------------------------------------------------------------------------------


def _follow(
    policy: CorePolicy, state: JobState, event: HealthSeen, decision: RuleDecision, now_s: float
) -> list[Action]:
    if decision.rung == "evict":
        return evict(policy, state, decision, event.at_unix_s, now_s)
    if decision.tolerated or decision.rung in ("relaunch", "stop"):
        return []  # a worker that dies of it says so itself
    if decision.rule.startswith(TRAINING) and decision.rung in ("diagnose", "rollback"):
        return _training(policy, state, event, decision, now_s)
    if decision.rung == "inquire":
        return _inquire(state, event, decision, now_s)
    if decision.rung == "diagnose":
        return _diagnose(policy, state, event, decision, now_s)
    if decision.held_back or decision.confidence != "low":
        return _tell(state, decision, now_s)
    return []


def _diagnose(
    policy: CorePolicy, state: JobState, event: HealthSeen, decision: RuleDecision, now_s: float
) -> list[Action]:
    """Remember it against the node. Suspend the job and have its nodes checked, if the sign is worth that; else report it."""
    if policy.diagnose == "never" or placement_of(state, event.node) is None or not policy.many:
        return _tell(state, decision, now_s)
    from robust_run.launcher.core.ladder import ladder_state, suspects, suspending

    is_doubtful = decision.confidence == "low"
    weight = SIGN_DOUBTED if is_doubtful else SIGN
    known = ladder_state.ladder_state_of(state)
    blamed = suspects.blame(policy, known, nodes_of(state, decision), weight, decision.sentence, now_s)
    ladder_state.remember(state, blamed)
    key = f"{decision.rule} {decision.node}"
    why_not = "" if is_doubtful else suspending.why_not(policy, state, key, now_s)
    if is_doubtful or why_not:
        return _tell(state, decision, now_s, why_not)
    state.code_fault = draft_of(state, decision)
    return suspending.suspend(policy, state, "health", decision.event.name, key, now_s)


def _training(
    policy: CorePolicy, state: JobState, event: HealthSeen, decision: RuleDecision, now_s: float
) -> list[Action]:
    """Numbers went wrong. The version on probation is the first suspect; NaN ends the attempt in any case.

    A jump may be the data's: without a suspect it is told, and training goes on. If it stays there, the nodes are checked.
    """
    if decision.event.name == JUMP_STAYS and (stays := _jump_stays(policy, state, event, decision, now_s)):
        return stays
    if not state.is_going or placement_of(state, event.node) is None:
        return []
    running = state.code.running
    is_suspect = bool(running) and state.code.records[running - 1].fate == "probation"
    if decision.event.name != "training.nan" and not is_suspect:
        return _tell(state, decision, now_s)
    state.code_fault = draft_of(state, decision)
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    return end_attempt(state, failure_ending(policy, state))


def _jump_stays(
    policy: CorePolicy, state: JobState, event: HealthSeen, decision: RuleDecision, now_s: float
) -> list[Action]:
    """Suspend the job for it; nothing where that is not worth it."""
    from robust_run.launcher.core.ladder import suspending

    if placement_of(state, event.node) is None or suspending.why_not(policy, state, JUMP_STAYS, now_s):
        return []
    state.code_fault = draft_of(state, decision)
    return suspending.suspend(policy, state, "jump", "", JUMP_STAYS, now_s)


def _inquire(state: JobState, event: HealthSeen, decision: RuleDecision, now_s: float) -> list[Action]:
    placement = placement_of(state, event.node)
    if placement is None:
        return []
    why = HangSuspected(
        attempt=state.attempt, node=event.node, rank=placement.first_rank, waited_s=0.0, reason=decision.sentence
    )
    return suspected(state, why, now_s)


def _tell(state: JobState, decision: RuleDecision, now_s: float, why_not: str = "") -> list[Action]:
    """Report it, while the attempt goes on. `why_not`: why what the rule asks for is not done."""
    if state.attempt < 0 or len(state.health.said) > MOST_TOLD:
        return []
    if len(state.health.said) == MOST_TOLD:
        return [Say(text="more is wrong with more nodes; robust status shows it")]
    why = decision.held_back or f"rule {decision.rule} asks for: {decision.rung}" + (
        f", but {why_not}" if why_not else ""
    )
    incident = RecordIncident(
        attempt=state.attempt,
        symptom="health",
        onset_at_s=min(decision.event.at_s, now_s),
        detected_at_s=now_s,
        verdict=draft_of(state, decision),
        action="report",
        reason=why,
    )
    return [incident]
