"""From what happened to what to do about it: one rung after the other. Pure.

    Failed ──► diagnose ──► evict | reattempt ──► (fails again) roll back ──► (again) swap ──► (again) replay ──► evict | stop

A rung is tried once in an episode. What costs least comes first; what cannot be done here is passed over, and it is said why.
"""

from __future__ import annotations

from typing import Any

import msgspec

from robust_run.health.checks.types import Ambiguity, CheckJudgement
from robust_run.health.ladder.cover import cover
from robust_run.health.ladder.rules import RULES, everything_known
from robust_run.health.ladder.symptoms import checks_for
from robust_run.health.ladder.types import (
    SUSPENDED,
    Diagnosed,
    Event,
    Failed,
    FailureKind,
    LadderDecision,
    LadderPolicy,
    Replayed,
    RollbackRefused,
    Rung,
    Settled,
    State,
)

#: Of a judgement, so many sentences are kept: 10,000 nodes may all have something to say.
MOST_SAID = 20
#: The rule by which a diagnosis begins, where the kind of failure says it.
BEGUN_BY: dict[FailureKind, str] = {
    "nan": "nan_diagnose",
    "hang": "hang_again_diagnose",
    "health": "sensor_diagnose",
    "jump": "jump_diagnose",
    "slow": "slow_diagnose",
}
#: What an episode is resolved by, and the rule that says so.
HELPED: dict[Rung, str] = {
    "evict": "evict_helped",
    "reattempt": "reattempt_helped",
    "rollback": "rollback_helped",
    "swap": "swap_helped",
}


def step(policy: LadderPolicy, state: State, event: Event) -> tuple[State, LadderDecision | None]:
    """Return the state after an event, and what to do; None if nothing follows from it."""
    if isinstance(event, Failed):
        return _failed(policy, state, event)
    if isinstance(event, Settled):
        return _settled(state, event)
    waits_for = state.rungs[-1:]
    if isinstance(event, Diagnosed) and waits_for == ("diagnose",):
        return _diagnosed(policy, state, event)
    if isinstance(event, RollbackRefused) and waits_for == ("rollback",):
        told = _know(state, f"the earlier code could not be put back: {event.reason}")
        return _replay(policy, told, event.at_s, "rollback_impossible", told.known[-1])
    if isinstance(event, Replayed) and waits_for == ("replay",):
        return _replayed(policy, state, event)
    return state, None


def most_evicted(share: float, nodes: int) -> int:
    """Return how many nodes a share is."""
    return max(int(share * nodes + 1e-9), 1) if share > 0 else 0


def counted(nodes: int) -> str:
    """Return so many nodes in words."""
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def allowed(policy: LadderPolicy, state: State) -> int:
    """Return how many more nodes may be evicted in this episode."""
    nodes = len(state.failure.nodes) + len(state.evicted) if state.failure else 0
    return most_evicted(policy.max_evict_share, nodes) - len(state.evicted) - policy.evicted_before


def _failed(policy: LadderPolicy, state: State, event: Failed) -> tuple[State, LadderDecision | None]:
    if state.rungs[-1:] in (("diagnose",), ("replay",)):
        return state, None  # nothing runs meanwhile: this is an echo of the failure it is about
    may_swap = bool(event.swap_of) and "swap" not in state.rungs
    if event.swap == "last":
        return _swap(state, event) if may_swap else (state, None)
    if event.swap == "now" and may_swap:
        return _swap(state, event)
    if not state.is_climbing or state.rungs == ("swap",):
        return _diagnose(policy, state, event)
    state = _know(msgspec.structs.replace(state, failure=event), f"it failed again: {event.sentence}")
    if event.outstanding and state.rungs[-1] == "reattempt" and is_covered(policy, state, 1):
        why = f"{event.sentence}; {event.outstanding} was blamed again and again, and no other node nearly as often"
        return _decide(state, event.at_s, "evict", "suspected_evicted", why, nodes=(event.outstanding,))
    code, is_replayed = event.code, "replay" in state.rungs
    is_newer = policy.may_roll_back and code.last_good and code.last_good != code.running
    if is_newer and "rollback" not in state.rungs and not is_replayed:
        why = f"{event.sentence}; {code.running or 'the code'} never did well, {code.last_good} did"
        return _decide(state, event.at_s, "rollback", "failed_again_rollback", why, version=code.last_good)
    if event.swap and may_swap:
        return _swap(state, event)
    if is_replayed:
        return _give_up(state, event.at_s, "nothing_left")
    return _replay(policy, state, event.at_s, "failed_again_replay", event.sentence)


def _swap(state: State, event: Failed) -> tuple[State, LadderDecision]:
    """A standby takes the place of the node that failed."""
    if not state.is_climbing:
        state = State(number=state.number, episode=state.episode + 1, known=(event.sentence,))
    state = msgspec.structs.replace(state, failure=event)
    return _decide(state, event.at_s, "swap", "swapped_to_test", event.sentence, nodes=(event.swap_of,))


def _diagnose(policy: LadderPolicy, state: State, event: Failed) -> tuple[State, LadderDecision]:
    fresh = State(number=state.number, episode=state.episode + 1, failure=event, known=(event.sentence,))
    rule, seconds = "unexplained_diagnose", policy.seconds
    why = event.sentence
    if event.evicted_before:
        rule = "evicted_in_vain"
        why = f"{event.sentence}, although {', '.join(event.evicted_before)} had been evicted"
    elif event.suspect and event.kind != "hang":
        rule = "suspected_diagnose"
    if event.kind in ("nan", "jump") or event.sign.startswith("numbers."):
        seconds = policy.nan_seconds
    if event.kind not in ("crash", "unknown") and rule != "evicted_in_vain":
        rule = BEGUN_BY[event.kind]
    checks = checks_for(event.kind, event.sign)
    return _decide(fresh, event.at_s, "diagnose", rule, why, seconds=seconds, checks=checks)


def _diagnosed(policy: LadderPolicy, state: State, event: Diagnosed) -> tuple[State, LadderDecision]:
    judged = event.judgement
    state = _know(state, *_said(judged))
    suspects = tuple(dict.fromkeys(each.node for each in judged.suspects if each.confidence != "low"))
    if suspects:
        return _suspects(policy, state, event, suspects)
    unclear = [each for each in judged.ambiguous if each.rule != "fleet_wide"]
    if unclear and policy.may_evict:
        return _unclear(policy, state, event, unclear)
    if judged.is_clean:
        return _decide(
            state, event.at_s, "reattempt", "all_passed", f"nothing was found on {counted(len(judged.passed))}"
        )
    said = "; ".join(_said(judged)) or "checks found nothing"
    return _decide(state, event.at_s, "reattempt", "nothing_certain", said)


def _suspects(
    policy: LadderPolicy, state: State, event: Diagnosed, suspects: tuple[str, ...]
) -> tuple[State, LadderDecision]:
    """Checks found nodes at fault. Those that are for certain go, others if the job goes on at once without them."""
    found = [each for each in event.judgement.suspects if each.confidence != "low"]
    said = "; ".join([each.sentence for each in found][:MOST_SAID])
    if not policy.may_evict:
        return _lone(state, event, said)
    most = allowed(policy, state)
    certain = tuple(dict.fromkeys(each.node for each in found if each.confidence == "high"))
    if len(suspects) <= most:
        others = [name for name in _worst_first(state, suspects) if name not in certain]
        left = len(others) if policy.spare is None else max(policy.spare - len(certain), 0)
        gone = (*certain, *others[:left])
        if not gone:
            return _decide(state, event.at_s, "reattempt", "uncovered_kept", said)
        return _decide(
            state, event.at_s, "evict", "suspects_evicted", said, nodes=tuple(n for n in suspects if n in gone)
        )
    if 0 < len(certain) <= most:  # less certain ones are no reason to keep these
        named = "; ".join([each.sentence for each in found if each.confidence == "high"][:MOST_SAID])
        rest = ", ".join([name for name in suspects if name not in certain][:MOST_SAID])
        why = f"{named}; {most} may be evicted, so these stay, which are less certain: {rest}"
        return _decide(state, event.at_s, "evict", "certain_evicted", why, nodes=certain)
    many = f"{len(suspects)} nodes are suspect, {most} may be evicted: {said}"
    return _decide(state, event.at_s, "reattempt", "too_many_suspects", many)


def _unclear(
    policy: LadderPolicy, state: State, event: Diagnosed, unclear: list[Ambiguity]
) -> tuple[State, LadderDecision]:
    """One of several nodes is at fault. All go that others take over for; the rest by what costs the least time."""
    nodes = tuple(dict.fromkeys(name for each in unclear for name in each.nodes))
    said = "; ".join([each.sentence for each in unclear][:MOST_SAID])
    most = allowed(policy, state)
    outstanding = state.failure.outstanding if state.failure is not None else ""
    if outstanding in nodes and len(unclear) == 1 and is_covered(policy, state, 1):
        why = f"{said}; {outstanding} was blamed before, and the others were not"
        return _decide(state, event.at_s, "evict", "ambiguous_known", why, nodes=(outstanding,))
    if len(nodes) > most:
        return _decide(state, event.at_s, "reattempt", "ambiguous_kept", said)
    plan = cover(_worst_first(state, nodes), policy.spare, most, policy.time_lost)
    if plan.rest == "none":
        more = {"nodes": nodes, "over_evicted": nodes[len(unclear) :]}
        return _decide(state, event.at_s, "evict", "ambiguous_evicted", said, **more)
    why = f"{said}; {plan.why}"
    if plan.rest == "search":
        return _replay(policy, state, event.at_s, "ambiguous_searched", why)
    if not plan.evict:
        return _decide(state, event.at_s, "reattempt", "ambiguous_uncovered", why)
    rule = "ambiguous_evicted" if plan.rest == "wait" else "ambiguous_covered"
    over = plan.evict[len(unclear) :] if plan.rest == "wait" else plan.evict[1:]
    return _decide(state, event.at_s, "evict", rule, why, nodes=plan.evict, over_evicted=over)


def _worst_first(state: State, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return nodes by what is held against them, most first."""
    known = state.failure.worst_first if state.failure is not None else ()
    return (*(name for name in known if name in nodes), *(name for name in nodes if name not in known))


def _lone(state: State, event: Diagnosed, said: str) -> tuple[State, LadderDecision]:
    """No node can take over: the job ends where the fault is certain, and else goes on as it is."""
    if any(each.confidence == "high" for each in event.judgement.suspects):
        return _stop(state, event.at_s, "lone_node")
    return _decide(state, event.at_s, "reattempt", "nothing_certain", said)


def _replayed(policy: LadderPolicy, state: State, event: Replayed) -> tuple[State, LadderDecision]:
    found = event.conclusion
    state = _know(state, f"replay: {found.sentence}")
    nodes = found.machines or found.candidates
    if nodes and len(nodes) > allowed(policy, state):
        return _stop(state, event.at_s, "replay_too_many")
    if found.verdict == "found":
        return _decide(state, event.at_s, "evict", "replay_found", found.sentence, nodes=nodes)
    if found.verdict == "ambiguous" and nodes:
        rule = "replay_ambiguous_evicted"
        return _decide(state, event.at_s, "evict", rule, found.sentence, nodes=nodes, over_evicted=nodes[1:])
    return _stop(state, event.at_s, "replay_everywhere" if found.verdict == "everywhere" else "replay_clean")


def _replay(policy: LadderPolicy, state: State, at_s: float, rule: str, why: str) -> tuple[State, LadderDecision]:
    nodes = state.failure.nodes if state.failure else ()
    if not policy.may_replay or len(nodes) < 2 * policy.replay_unit:
        reason = policy.why_no_replay if not policy.may_replay else f"{len(nodes)} nodes make no two groups"
        return _give_up(_know(state, f"no replay: {reason}"), at_s, "nothing_left")
    return _decide(state, at_s, "replay", rule, why)


def _settled(state: State, event: Settled) -> tuple[State, LadderDecision | None]:
    was_suspended = state.failure is not None and state.failure.kind in SUSPENDED  # it went on before, too
    rule = HELPED.get(state.rungs[-1]) if state.decisions and not was_suspended else None
    if rule is None:
        return state, None
    named = {"evict": state.evicted, "swap": state.decisions[-1].nodes}.get(state.rungs[-1], ())
    said = RULES[rule] + (f" ({', '.join(named)})" if named else "")
    after, decision = _decide(state, event.at_s, "settled", rule, said)
    return State(number=after.number, episode=after.episode), decision


def is_covered(policy: LadderPolicy, state: State, nodes: int) -> bool:
    """Whether so many nodes may be evicted and the job still goes on at once."""
    return nodes <= allowed(policy, state) and policy.may_evict and (policy.spare is None or nodes <= policy.spare)


def _give_up(state: State, at_s: float, rule: str) -> tuple[State, LadderDecision]:
    """Nothing is left to try. A crash ends the job; ranks that hang may go on after a restart, as they do without a ladder."""
    if state.failure is not None and state.failure.kind == "hang":
        return _decide(state, at_s, "reattempt", "all_tried", everything_known(state))
    return _stop(state, at_s, rule)


def _stop(state: State, at_s: float, rule: str) -> tuple[State, LadderDecision]:
    return _decide(state, at_s, "stop", rule, everything_known(state))


def _know(state: State, *sentences: str) -> State:
    return msgspec.structs.replace(state, known=tuple(dict.fromkeys((*state.known, *sentences))))


def _said(judged: CheckJudgement) -> tuple[str, ...]:
    said = [each.sentence for each in judged.suspects] + [each.sentence for each in judged.ambiguous]
    said += judged.unchecked
    return (*said[:MOST_SAID], *([f"and {len(said) - MOST_SAID} more findings"] if len(said) > MOST_SAID else []))


def _decide(
    state: State, at_s: float, rung: Rung, rule: str, sentence: str, **more: Any
) -> tuple[State, LadderDecision]:
    made = LadderDecision(
        number=state.number + 1,
        episode=state.episode,
        at_s=at_s,
        rung=rung,
        rule=rule,
        sentence=sentence,
        **more,
    )
    after = msgspec.structs.replace(
        state,
        number=made.number,
        decisions=(*state.decisions, made),
        evicted=(*state.evicted, *(made.nodes if rung == "evict" else ())),
    )
    return after, made
