"""The life of attempts: gathering nodes, starting, ending, and what follows from an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.actions import Action, EndAttempt, Finish, OpenStore, RecordIncident, Say, StartAttempt, WakeAt
from robust_run.launcher.code_types import CodeUse
from robust_run.launcher.core.judge import Judgement, is_nan, judge, was_sent_a_signal
from robust_run.launcher.core.membership import Gathering, gather, name_of, wanted
from robust_run.launcher.core.state import JobState, Policy
from robust_run.launcher.restart import Decision, Limits, decide, has_progressed, healed
from robust_run.launcher.types import Placement, Progress
from robust_run.signals import signal_name

if TYPE_CHECKING:
    from robust_run.launcher.core.ladder import Concluded

SIGTERM = 15

#: Nodes that are started together arrive within this time: nobody needs to be told that they are awaited.
ARRIVING_S = 2.0


def begin(policy: Policy, state: JobState, now_s: float) -> list[Action]:
    """Gather nodes from now on."""
    state.phase = "gathering"
    state.gathering_since_s, state.enough_since_s, state.deadline_at_s = now_s, None, None
    return try_to_gather(policy, state, now_s)


def try_to_gather(policy: Policy, state: JobState, now_s: float) -> list[Action]:
    """Start the next attempt if the nodes for it are there; else wait, or give up when that has taken too long."""
    if state.strays:
        return []  # what follows when the last of them has ended
    if is_held(state, now_s):
        return _hold(state)
    if state.usable < policy.fewest:
        if state.enough_since_s is not None:
            state.gathering_since_s = now_s  # there were enough: the wait for them begins anew
        state.enough_since_s = None
    elif state.enough_since_s is None:
        state.enough_since_s = now_s
    found = gather(policy, state, now_s)
    if found.decision == "start":
        return _open(state, found.layout)
    if found.decision == "give_up":
        return finish(state, Finish(exit_code=1, outcome="failed", reason=found.reason))
    return _wait(policy, state, found, now_s)


def is_held(state: JobState, now_s: float) -> bool:
    """Whether agents that are not on record may still run something."""
    return state.hold_until_s is not None and now_s < state.hold_until_s


def _hold(state: JobState) -> list[Action]:
    if state.deadline_at_s == state.hold_until_s or state.hold_until_s is None:
        return []
    state.deadline_at_s = state.hold_until_s
    return [WakeAt(state.hold_until_s)]


def _wait(policy: Policy, state: JobState, found: Gathering, now_s: float) -> list[Action]:
    """Look again when the wait is over, and say for what; not while nodes that were started together are just arriving."""
    until_s = found.until_s if found.until_s is not None else now_s
    quiet_until_s = (state.gathering_since_s or 0.0) + ARRIVING_S
    are_arriving = (
        state.term == 1 and not state.layout and state.enough_since_s is None and state.usable == len(state.members)
    )
    is_quiet = not policy.many or (are_arriving and now_s < quiet_until_s)
    if is_quiet and policy.many:
        until_s = min(until_s, quiet_until_s)
    if state.deadline_at_s == until_s:
        return []
    state.deadline_at_s = until_s
    return [WakeAt(until_s)] if is_quiet else [Say(text=found.reason), WakeAt(until_s)]


def _open(state: JobState, layout: tuple[Placement, ...]) -> list[Action]:
    state.phase = "opening"
    state.attempt += 1
    state.layout = layout
    state.places = {placement.node: index for index, placement in enumerate(layout)}
    state.unended = set(state.places)
    state.started, state.live, state.early_exits = set(), set(), []
    state.evidence, state.causes = [], []
    state.progress, state.trouble, state.all_well = Progress(), "", False
    state.is_inquiring, state.suspected_at_s, state.traced = False, None, None
    state.is_traced_end, state.evicted_for, state.reported = False, (), []
    state.detected_at_s = state.deadline_at_s = None
    state.gathering_since_s = state.enough_since_s = None
    state.ending = state.code_fault = None
    if state.code.records:
        from robust_run.launcher.code_versions import ledger

        state.code = ledger.begun(state.code, state.attempt)
    return [OpenStore(attempt=state.attempt, node=layout[0].node)]


def start_order(state: JobState, only: str = "") -> StartAttempt:
    """Return the order to start the attempt's workers. `only`: a node; empty: all of them."""
    placements = state.layout if not only else (state.layout[state.places[only]],)
    return StartAttempt(
        attempt=state.attempt,
        address=state.address,
        port=state.port,
        placements=placements,
        world_size=state.world_size,
        nodes=len(state.layout),
        peers=tuple(filter(None, (state.members[each.node].info.blocks for each in state.layout))),
        code=_code(state),
    )


def _code(state: JobState) -> CodeUse | None:
    if not state.code.records:
        return None
    from robust_run.launcher.code_versions import ledger

    return ledger.use(state.code)


def end_attempt(state: JobState, order: EndAttempt) -> list[Action]:
    """Have every node of the attempt end it; a second order only if it is more urgent."""
    if state.phase != "stopping":
        state.phase = "ending"
    state.deadline_at_s = None
    state.ending = order
    return [order] if state.unended else []


def failure_ending(policy: Policy, state: JobState) -> EndAttempt:
    """One failed, so none can go on: the survivors get SIGTERM and the grace; nobody waits for what they leave behind."""
    return EndAttempt(attempt=state.attempt, signal=SIGTERM, grace_s=policy.restart_grace_s)


def conclude(policy: Policy, state: JobState, now_s: float) -> list[Action]:
    """The attempt is over everywhere: say what it was, and start the next or finish."""
    state.attempt = max(state.attempt, state.told_of)
    if state.stop_signal is not None:
        return stopped(state)
    if state.phase == "replaying":
        return _replay_ended(policy, state, now_s)
    verdict = judge(state)
    if verdict is None:
        return _done(policy, state, now_s)
    verdict, spoken = _with_symptoms(policy, state, verdict, now_s)
    restarts = policy.max_restarts or int(state.limit_is_near)  # going on after a requeue is no restart of ours
    limits = Limits(max_restarts=restarts, progress_after_s=policy.progress_after_s)
    progressed = has_progressed(state.trail, state.progress, limits)
    if policy.diagnose != "never" and is_nan(verdict.draft):
        verdict = msgspec.structs.replace(verdict, draft=msgspec.structs.replace(verdict.draft, kind="nan"))
    verdict, is_rolled_back = _without_suspect(state, verdict)
    decision = _decide(policy, state, verdict, limits, is_rolled_back=is_rolled_back)
    waits = state.limit_is_near and decision.relaunch and not (verdict.heals or is_rolled_back or state.code.pending)
    if waits:
        decision = Decision(relaunch=False, reason="no other attempt is begun so near the time limit")
    incident = RecordIncident(
        attempt=state.attempt,
        symptom=verdict.symptom,
        onset_at_s=verdict.onset_at_s if verdict.onset_at_s is not None else now_s,
        detected_at_s=state.detected_at_s if state.detected_at_s is not None else now_s,
        verdict=verdict.draft,
        action="stop",
        reason=decision.reason,
    )
    may_go_on = decision.relaunch and not is_rolled_back and not state.code.pending
    climbed = _asked_ladder(policy, state, verdict, progressed=progressed, may_go_on=may_go_on, now_s=now_s)
    said = [*spoken, *(climbed.said if climbed is not None else ())]
    if not decision.relaunch:
        known = climbed.known if climbed is not None else ""
        end = Finish(
            exit_code=verdict.draft.exit_code,
            outcome="stopped" if waits else "failed",
            reason="; ".join(filter(None, (decision.reason, known))),
            sentence=verdict.draft.sentence,
        )
        return [*said, incident, *finish(state, end)]
    if climbed is not None and climbed.decision is not None:
        from robust_run.launcher.core import ladder

        return [*said, *ladder.follow(policy, state, climbed.decision, incident, now_s)]
    action = "rollback" if is_rolled_back else "evict" if verdict.evicts else "relaunch"
    return [*said, *_start_again(policy, state, msgspec.structs.replace(incident, action=action), now_s)]


def _done(policy: Policy, state: JobState, now_s: float) -> list[Action]:
    """The attempt did its work: so did the job."""
    _trust_code(state)
    asked = _asked_ladder(policy, state, None, progressed=True, may_go_on=False, now_s=now_s)
    return [*(asked.said if asked is not None else ()), *finish(state, Finish(exit_code=0, outcome="done"))]


def _decide(policy: Policy, state: JobState, verdict: Judgement, limits: Limits, *, is_rolled_back: bool) -> Decision:
    """Return whether the job is started again, and keep what later decisions of this kind depend on."""
    if verdict.heals or is_rolled_back:
        state.trail, decision = healed(state.trail, state.progress, limits)
    else:
        state.trail, decision = decide(state.trail, verdict.draft, state.progress, limits)
    if is_rolled_back:
        decision = msgspec.structs.replace(decision, reason=f"back to version {state.code.running}")
    if state.code.pending and not decision.relaunch and policy.max_restarts > 0:
        state.trail, decision = healed(state.trail, state.progress, limits)  # what runs next is another program
    return decision


def _start_again(policy: Policy, state: JobState, incident: RecordIncident, now_s: float) -> list[Action]:
    """Begin the next attempt, and put on record what that means: nodes that take over, nodes that are awaited, or the end."""
    reason = f"version {state.code.pending} is put in place" if state.code.pending else incident.reason
    before = state.layout
    follow_up = begin(policy, state, now_s)
    incident = msgspec.structs.replace(incident, reason=_consequence(policy, state, before, now_s) or reason)
    if state.finish is not None:
        incident = msgspec.structs.replace(incident, action="stop", reason=state.finish.reason)
    return [incident, *follow_up]


def _asked_ladder(
    policy: Policy, state: JobState, verdict: Judgement | None, *, progressed: bool, may_go_on: bool, now_s: float
) -> Concluded | None:
    """Return what the ladder says of the end of an attempt. What cannot concern it does not even import it."""
    if policy.diagnose == "never" or (
        not state.climb and (verdict is None or not _may_concern_ladder(policy, verdict))
    ):
        return None
    from robust_run.launcher.core import ladder

    return ladder.concluded(policy, state, verdict, progressed=progressed, may_go_on=may_go_on, now_s=now_s)


def _may_concern_ladder(policy: Policy, verdict: Judgement) -> bool:
    if verdict.evicts or policy.diagnose == "always":
        return True
    draft = verdict.draft
    if draft.kind not in ("crash", "unknown"):
        return draft.kind == "nan"
    finding = draft.culprit.finding if draft.culprit is not None else None
    return not was_sent_a_signal(draft) and (finding is not None or draft.rule == "died_of_signal")


def _replay_ended(policy: Policy, state: JobState, now_s: float) -> list[Action]:
    from robust_run.launcher.core import replaying

    return replaying.pass_over(policy, state, now_s)


def _with_symptoms(policy: Policy, state: JobState, verdict: Judgement, now_s: float) -> tuple[Judgement, list[Action]]:
    """Add what the rules say of the culprit's last words and what sensors saw; nothing is imported where there is neither."""
    culprit = verdict.draft.culprit
    has_words = culprit is not None and culprit.finding is not None
    if not has_words and not state.health.recent:
        return verdict, []
    from robust_run.launcher.core import symptoms

    return symptoms.explained(policy, state, verdict, now_s)


def _trust_code(state: JobState) -> None:
    if state.code.records:
        from robust_run.launcher.core import versions

        versions.proven(state)


def _without_suspect(state: JobState, verdict: Judgement) -> tuple[Judgement, bool]:
    """Take the version on probation back if the failure is its doing; return what is said of it, and whether it was."""
    if not state.code.records:
        return verdict, False
    from robust_run.launcher.core import versions

    draft = verdict.draft
    version = versions.roll_back(state, draft.kind, draft.sentence, heals=verdict.heals)
    if version is None:
        return verdict, False
    aftermath = "; ".join(filter(None, (draft.aftermath, versions.clause(state, version))))
    return msgspec.structs.replace(verdict, draft=msgspec.structs.replace(draft, aftermath=aftermath)), True


def _consequence(policy: Policy, state: JobState, before: tuple[Placement, ...], now_s: float) -> str:
    """Return what becomes of the job's nodes, as a clause; empty if they stay the same."""
    if state.phase == "gathering" and is_held(state, now_s):
        return "a new attempt is started as soon as nothing of an old one can run anywhere"
    if state.phase == "gathering":
        return f"{state.usable} of {wanted(policy, state.usable)} nodes are left, it waits for more"
    was, now = [p.node for p in before], [p.node for p in state.layout]
    places_before = set(was)
    newcomers = [name_of(state, node) for node in now if node not in places_before]
    if newcomers:
        names = ", ".join(newcomers[:4]) + (f" and {len(newcomers) - 4} more" if len(newcomers) > 4 else "")
        takes = "take over" if len(newcomers) > 1 else "takes over"
        return f"{names} {takes}" + (f", {len(now)} instead of {len(was)} nodes" if len(now) != len(was) else "")
    return f"on {len(now)} instead of {len(was)} nodes" if len(now) != len(was) else ""


def stopped(state: JobState) -> list[Action]:
    """End the job because it was told to."""
    number = state.stop_signal or 0
    by = f"stopped by {state.stopped_by}" if state.stopped_by else f"stopped by {signal_name(number)}"
    return finish(state, Finish(exit_code=128 + number, outcome="stopped", reason=by))


def finish(state: JobState, end: Finish) -> list[Action]:
    """The job is over."""
    state.phase, state.finish = "over", end
    return [end]
