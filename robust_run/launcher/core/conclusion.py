"""Conclusion of an attempt that is over on all nodes: the verdict, and whether the job starts again, asks the ladder, or ends.

`core.step` alone calls it, when nothing of the attempt can run anywhere any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from robust_run.launcher.core.attempts import begin, finish, is_held, is_paused, stopped
from robust_run.launcher.core.diagnosis.judge import AttemptJudgement, is_hang, is_nan, judge, was_sent_a_signal
from robust_run.launcher.core.diagnosis.verdict import CRASHED_AT_EXIT
from robust_run.launcher.core.membership import name_of, wanted
from robust_run.launcher.core.restart import NEVER_AGAIN, RestartDecision, RestartLimits, decide, has_progressed, healed
from robust_run.launcher.core.state import CorePolicy, EndCause, JobState
from robust_run.launcher.model.actions import Action, Finish, RecordIncident
from robust_run.launcher.model.job import Placement

if TYPE_CHECKING:
    from robust_run.launcher.core.ladder.ladder import Concluded


Standing = Literal["goes_on", "spent", "over"]
"""Whether the job is started again; spent: --max-restarts alone speaks against it."""


def conclude(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """The attempt is over everywhere: say what it was, and start the next or finish."""
    state.attempt = max(state.attempt, state.told_of)
    if state.stop_signal is not None:
        return stopped(state)
    if state.phase == "replaying":
        return _replay_ended(policy, state, now_s)
    verdict = judge(state)
    if verdict is None:
        return _done(policy, state, now_s)
    if verdict.draft.rule == CRASHED_AT_EXIT:
        return _done_but_for_exit(policy, state, verdict, now_s)
    if state.resume is not None:
        state.progress = msgspec.structs.replace(state.progress, start_step=state.resume.step)
    verdict, spoken = _with_symptoms(policy, state, verdict, now_s)
    restarts = policy.max_restarts or int(state.limit_is_near)  # going on after a requeue is no restart of ours
    limits = RestartLimits(max_restarts=restarts, progress_after_s=policy.progress_after_s)
    progressed = has_progressed(state.trail, state.progress, limits)
    verdict = _of_start(state, verdict, limits)
    if policy.diagnose != "never" and is_nan(verdict.draft):
        verdict = msgspec.structs.replace(verdict, draft=msgspec.structs.replace(verdict.draft, kind="nan"))
    verdict, is_rolled_back = _without_suspect(state, verdict)
    decision = _decide(policy, state, verdict, limits, now_s, is_rolled_back=is_rolled_back)
    state.pause_until_s = now_s + decision.pause_s if decision.relaunch and decision.pause_s else None
    state.failed_at_s = verdict.onset_at_s if verdict.onset_at_s is not None else now_s
    waits = state.limit_is_near and decision.relaunch and not (verdict.heals or is_rolled_back or state.code.pending)
    if waits:
        decision = RestartDecision(relaunch=False, reason="no other attempt is begun so near the time limit")
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
    standing: Standing = "goes_on" if may_go_on else "spent" if decision.is_spent else "over"
    climbed = _asked_ladder(policy, state, verdict, progressed=progressed, standing=standing, now_s=now_s)
    goes_on = decision.relaunch or (climbed is not None and climbed.decision is not None)
    said = [*spoken, *(climbed.said if climbed is not None else ())]
    if not goes_on:
        known = climbed.known if climbed is not None else ""
        end = Finish(
            exit_code=verdict.draft.exit_code,
            outcome="stopped" if waits else "failed",
            reason="; ".join(filter(None, (decision.reason, known))),
            sentence=verdict.draft.sentence,
        )
        return [*said, incident, *finish(state, end)]
    if climbed is not None and climbed.decision is not None:
        from robust_run.launcher.core.ladder import ladder

        if climbed.decision.rung == "swap":
            state.pause_until_s = None  # what failed is out of it
        if not decision.relaunch:
            state.trail = msgspec.structs.replace(state.trail, restarts=state.trail.restarts + 1)
        return [*said, *ladder.follow(policy, state, climbed.decision, incident, now_s)]
    action = "rollback" if is_rolled_back else "evict" if verdict.evicts else "relaunch"
    return [*said, *_start_again(policy, state, msgspec.structs.replace(incident, action=action), now_s)]


def _done(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """The attempt did its work: so did the job."""
    _trust_code(state)
    asked = _asked_ladder(policy, state, None, progressed=True, standing="over", now_s=now_s)
    return [*(asked.said if asked is not None else ()), *finish(state, Finish(exit_code=0, outcome="done"))]


def _done_but_for_exit(policy: CorePolicy, state: JobState, verdict: AttemptJudgement, now_s: float) -> list[Action]:
    """The attempt did its work, and a rank died when its program had ended: there is nothing to train again.

    The exit code says it, since what a program leaves to the interpreter's clean-up (a file that it never closed) may be lost.
    """
    _trust_code(state)
    asked = _asked_ladder(policy, state, None, progressed=True, standing="over", now_s=now_s)
    draft, reason = verdict.draft, "all ranks had come to the end of their program: there is nothing to train again"
    incident = RecordIncident(
        attempt=state.attempt,
        symptom=verdict.symptom,
        onset_at_s=verdict.onset_at_s if verdict.onset_at_s is not None else now_s,
        detected_at_s=now_s,
        verdict=draft,
        action="stop",
        reason=reason,
    )
    end = Finish(exit_code=draft.exit_code, outcome="failed", reason=reason, sentence=draft.sentence)
    return [*(asked.said if asked is not None else ()), incident, *finish(state, end)]


def _decide(
    policy: CorePolicy,
    state: JobState,
    verdict: AttemptJudgement,
    limits: RestartLimits,
    now_s: float,
    *,
    is_rolled_back: bool,
) -> RestartDecision:
    """Return whether the job is started again, and keep what later decisions of this kind depend on."""
    if verdict.heals or is_rolled_back:
        state.trail, decision = healed(state.trail, state.progress, limits)
    else:
        state.trail, decision = decide(state.trail, verdict.draft, state.progress, limits, now_s)
    if is_rolled_back:
        decision = msgspec.structs.replace(decision, reason=f"back to version {state.code.running}")
    if state.no_point == "ever":
        decision = RestartDecision(relaunch=False, reason="starting it again cannot mend that")
    elif verdict.heals and state.found_damaged:
        from robust_run.launcher.core.resume import resuming

        decision = msgspec.structs.replace(decision, reason=resuming.reason(state))
    if state.code.pending and not decision.relaunch and policy.max_restarts > 0:
        state.trail, decision = healed(state.trail, state.progress, limits)  # what runs next is another program
    may_be_wished = state.no_point != "ever" and verdict.draft.exit_code != NEVER_AGAIN
    if not decision.relaunch and may_be_wished and any(map(_is_wish, state.causes)):
        state.trail, decision = healed(state.trail, state.progress, limits)
        decision = msgspec.structs.replace(decision, reason="somebody asked for another attempt")
    return decision


def _is_wish(cause: EndCause) -> bool:
    """Whether somebody has been told that the job goes on: who asked for a restart, or took a node out of it. That a rank had
    failed a moment before, as turns out at the end, was not known to either.
    """
    return cause.kind == "asked" or (cause.kind == "evicted" and not cause.rule)


def _start_again(policy: CorePolicy, state: JobState, incident: RecordIncident, now_s: float) -> list[Action]:
    """Begin the next attempt, and put on record what that means: nodes that take over, nodes that are awaited, or the end."""
    reason = f"version {state.code.pending} is put in place" if state.code.pending else incident.reason
    before = state.layout
    follow_up = begin(policy, state, now_s)
    incident = msgspec.structs.replace(incident, reason=_consequence(policy, state, before, now_s) or reason)
    if state.finish is not None:
        incident = msgspec.structs.replace(incident, action="stop", reason=state.finish.reason)
    return [incident, *follow_up]


def _asked_ladder(
    policy: CorePolicy,
    state: JobState,
    verdict: AttemptJudgement | None,
    *,
    progressed: bool,
    standing: Standing,
    now_s: float,
) -> Concluded | None:
    """Return what the ladder says of the end of an attempt. What cannot concern it does not even import it."""
    if policy.diagnose == "never" or (
        not state.ladder_state and (verdict is None or not _may_concern_ladder(policy, state, verdict))
    ):
        return None
    from robust_run.launcher.core.ladder import ladder

    return ladder.concluded(policy, state, verdict, progressed=progressed, standing=standing, now_s=now_s)


def _may_concern_ladder(policy: CorePolicy, state: JobState, verdict: AttemptJudgement) -> bool:
    if verdict.evicts or policy.diagnose == "always" or state.suspended_for or is_hang(verdict):
        return True
    draft = verdict.draft
    if draft.kind not in ("crash", "unknown"):
        return draft.kind == "nan"
    finding = draft.culprit.finding if draft.culprit is not None else None
    return not was_sent_a_signal(draft) and (finding is not None or draft.rule == "died_of_signal")


def _replay_ended(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    from robust_run.launcher.core import replaying

    return replaying.pass_over(policy, state, now_s)


def _with_symptoms(
    policy: CorePolicy, state: JobState, verdict: AttemptJudgement, now_s: float
) -> tuple[AttemptJudgement, list[Action]]:
    """Add what the rules say of the culprit's last words and what sensors saw; nothing is imported where there is neither."""
    culprit = verdict.draft.culprit
    has_words = culprit is not None and culprit.finding is not None
    if not has_words and not state.health.recent:
        return verdict, []
    from robust_run.launcher.core.diagnosis import symptoms

    return symptoms.explained(policy, state, verdict, now_s)


def _of_start(state: JobState, verdict: AttemptJudgement, limits: RestartLimits) -> AttemptJudgement:
    """Return the verdict on an attempt that had nothing to start from, or whose ranks found that damaged."""
    if not state.found_damaged and not state.no_point:
        return verdict
    from robust_run.launcher.core.resume import resuming

    may_heal = limits.max_restarts > 0 and verdict.draft.exit_code != NEVER_AGAIN
    return resuming.judged(state, verdict, may_heal=may_heal)


def _trust_code(state: JobState) -> None:
    if state.code.records:
        from robust_run.launcher.core import versions

        versions.proven(state)


def _without_suspect(state: JobState, verdict: AttemptJudgement) -> tuple[AttemptJudgement, bool]:
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


def _consequence(policy: CorePolicy, state: JobState, before: tuple[Placement, ...], now_s: float) -> str:
    """Return what becomes of the job's nodes, as a clause; empty if they stay the same."""
    if state.phase == "gathering" and is_paused(state, now_s):
        return ""
    if state.phase == "gathering" and is_held(state, now_s):
        return "a new attempt is started as soon as nothing of an old one can run anywhere"
    if state.phase == "gathering":
        return f"{state.usable} of {wanted(policy, state)} nodes are left, it waits for more"
    was, now = [p.node for p in before], [p.node for p in state.layout]
    places_before = set(was)
    newcomers = [name_of(state, node) for node in now if node not in places_before]
    if newcomers:
        names = ", ".join(newcomers[:4]) + (f" and {len(newcomers) - 4} more" if len(newcomers) > 4 else "")
        takes = "take over" if len(newcomers) > 1 else "takes over"
        return f"{names} {takes}" + (f", {len(now)} instead of {len(was)} nodes" if len(now) != len(was) else "")
    return f"on {len(now)} instead of {len(was)} nodes" if len(now) != len(was) else ""
