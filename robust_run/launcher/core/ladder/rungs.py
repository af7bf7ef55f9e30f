"""Rungs of the ladder that are taken: the next one, the end of the job, the eviction of hosts that nothing runs on. Pure."""

from __future__ import annotations

import msgspec

from robust_run.health.ladder import rules
from robust_run.health.ladder import step as ladder
from robust_run.health.ladder.cover import TimeLost
from robust_run.health.ladder.types import Event as LadderEvent
from robust_run.health.ladder.types import LadderDecision, LadderPolicy
from robust_run.launcher.core import membership
from robust_run.launcher.core.attempts import begin, finish
from robust_run.launcher.core.ladder import swapping
from robust_run.launcher.core.ladder.ladder_state import LadderState, ladder_state_of
from robust_run.launcher.core.ladder.suspects import evict_share, times_of
from robust_run.launcher.core.restart import excused
from robust_run.launcher.core.state import LADDER, CorePolicy, Eviction, JobState
from robust_run.launcher.model.actions import Action, Finish, Say
from robust_run.launcher.model.check_events import Decided

#: A replay makes two passes, each lasts twice as long as the attempt that failed, within these limits.
REPLAY_PASSES, REPLAY_LEAST_S, REPLAY_MOST_S = 2, 60.0, 1800.0
#: Nodes that are evicted by these are at fault: what failed on them is no evidence against the program (`core.restart`).
PROVEN = frozenset(("suspects_evicted", "certain_evicted", "replay_found"))
#: Fewer nodes are not replayed in groups.
LEAST_FOR_REPLAY = 4
#: How long checks measure on a job's only node, which has no peer to be compared with; and else.
LONE_S, USUAL_S, NAN_S = 1.0, 3.0, 30.0


def limits(policy: CorePolicy, state: JobState) -> LadderPolicy:
    """Return the numbers of the ladder for this job as it is."""
    few = f"{len(state.layout)} of {LEAST_FOR_REPLAY} nodes that make groups worth their while"
    why_not = policy.no_replay or (few if len(state.layout) < LEAST_FOR_REPLAY else "")
    lone = not policy.many
    return LadderPolicy(
        max_evict_share=evict_share(policy),
        evicted_before=sum(each.name in state.evicted for each in state.health.evicted),
        may_evict=policy.many,
        spare=max(state.usable - policy.fewest, 0) if policy.many else None,
        time_lost=_time_lost(policy, state, may_replay=not why_not),
        may_replay=not why_not,
        why_no_replay=why_not,
        replay_unit=policy.replay_unit,
        seconds=LONE_S if lone else USUAL_S,
        nan_seconds=LONE_S * 3 if lone else NAN_S,
    )


def _time_lost(policy: CorePolicy, state: JobState, *, may_replay: bool) -> TimeLost:
    """Return what is weighed where one of several nodes is at fault and not all can be taken over for."""
    times, lived_s = times_of(policy), state.progress.lived_s
    find_s = REPLAY_PASSES * min(max(REPLAY_LEAST_S, 2 * lived_s), REPLAY_MOST_S)
    return TimeLost(
        find_s=find_s if may_replay else None,
        standbys_s=times.standbys_s,
        mtbf_s=max(lived_s, 1.0),
        failure_s=times.failure_s,
    )


def taken(
    policy: CorePolicy, state: JobState, decision: LadderDecision, now_s: float, at_unix_s: float = 0.0
) -> list[Action]:
    """Evict whom a decision names, or set it aside, and begin the next attempt."""
    actions: list[Action] = [decided(state, decision)]
    if decision.rung == "swap":
        actions += swapping.set_aside(state, decision.nodes[0], decision.sentence)
    if decision.rule in PROVEN:
        failures = swapping.failures_of(ladder_state_of(state), decision.nodes)
        state.trail = excused(state.trail, failures)
    for name in decision.nodes if decision.rung == "evict" else ():
        actions += evict(state, name, decision.sentence, LADDER, at_unix_s)
    return [*actions, *begin(policy, state, now_s)]


def evict(state: JobState, name: str, why: str, by: str, at_unix_s: float) -> list[Action]:
    """Take a host out that nothing runs on; tell it."""
    if name in state.evicted:
        return []
    on_record = membership.evict(state, name, Eviction(reason=why[:500], by=by, at_unix_s=at_unix_s))
    there = [member.info.id for member in state.members.values() if member.info.name == name and member.present]
    text = f"{name} is evicted from the job by {by}: {why}; robust readmit {name} takes it back"
    return [*on_record, *(Say(text=text, node=node) for node in there)]


def stop(state: JobState, decision: LadderDecision) -> list[Action]:
    """End the job, with what was tried and found."""
    ladder_state = ladder_state_of(state)
    failure = ladder_state.ladder.failure
    end = Finish(
        exit_code=ladder_state.exit_code,
        outcome="failed",
        reason=f"{rules.RULES[decision.rule]}; {decision.sentence}",
        sentence=failure.sentence if failure is not None else "",
    )
    return [decided(state, decision), *finish(state, end)]


def next_rung(
    policy: CorePolicy, state: JobState, ladder_state: LadderState, event: LadderEvent
) -> tuple[LadderState, LadderDecision | None]:
    """Return what the ladder remembers after an event, and the rung that follows, if one does."""
    after, decision = ladder.step(limits(policy, state), ladder_state.ladder, event)
    return msgspec.structs.replace(ladder_state, ladder=after), decision


def decided(state: JobState, decision: LadderDecision) -> Decided:
    """Return a decision for the record."""
    return Decided(
        attempt=state.attempt,
        number=decision.number,
        episode=decision.episode,
        rung=decision.rung,
        rule=decision.rule,
        sentence=decision.sentence,
        nodes=decision.nodes,
        over_evicted=decision.over_evicted,
        version=decision.version,
    )
