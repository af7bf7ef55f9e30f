"""Ranks that still run when the others have ended with exit code 0, and when an attempt that runs is looked at again. Pure.

Rank 0 often has a last evaluation to do, a model to save or to upload, when its peers have long ended; or it hangs in a lock, a
thread or an exit handler. Both are named, neither is acted on: the training is done, so the job is never started again for it.
"""

from __future__ import annotations

from robust_run.launcher.core.diagnosis.judge import draft_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, Inquire, RecordIncident, Say, WakeAt
from robust_run.tracer.types import TraceVerdict

#: Who still runs is looked at so long after the others have ended; each time after twice as long, at most so long.
AFTER_S, LONGEST_PAUSE_S = 5.0, 600.0
#: The tracer's rule that names them.
RULE = "leftover"


def left(state: JobState, now_s: float) -> list[Action]:
    """A rank has come to its end and others go on: see later who still does."""
    state.last_left_at_s = now_s
    if state.leftovers_at_s is not None or state.looks_at_leftovers:
        return []
    state.leftovers_at_s, state.leftovers_pause_s = now_s + AFTER_S, AFTER_S
    return wake(state)


def tick(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Look again at a wait that is to be acted on by now, or at ranks that the others have left behind."""
    if state.is_inquiring:
        return []  # what comes of that sets the time anew
    if state.act_at_s is not None and now_s >= state.act_at_s:
        state.act_at_s = None
        state.is_inquiring, state.suspected_at_s = True, now_s
        return [Inquire(attempt=state.attempt, after_s=policy.hang_after_s), *wake(state)]
    if state.last_left_at_s is None or state.leftovers_at_s is None or now_s < state.leftovers_at_s:
        return wake(state)
    if now_s < state.last_left_at_s + AFTER_S:  # they are just ending
        state.leftovers_at_s = state.last_left_at_s + AFTER_S
        return wake(state)
    state.leftovers_at_s = None
    if len(state.live) > state.ended_well:  # most go on: this is not the end of the job
        return wake(state)
    state.is_inquiring = state.looks_at_leftovers = True
    return [Inquire(attempt=state.attempt, after_s=AFTER_S, leftovers=True), *wake(state)]


def seen(state: JobState, verdict: TraceVerdict | None, now_s: float) -> list[Action]:
    """Name ranks that still run: in a line if they are at work, as an incident if they do nothing. Once each."""
    state.is_inquiring = state.looks_at_leftovers = False
    state.leftovers_pause_s = min(2 * state.leftovers_pause_s, LONGEST_PAUSE_S)
    state.leftovers_at_s = now_s + state.leftovers_pause_s
    return [*(_named(state, verdict, now_s) if verdict is not None else ()), *wake(state)]


def _named(state: JobState, verdict: TraceVerdict, now_s: float) -> list[Action]:
    key = ("at work" if verdict.at_work else verdict.kind, verdict.ranks)
    if any((kind, ranks) == key for kind, ranks, _ in state.reported):
        return []
    state.reported.append((*key, now_s))
    if verdict.at_work:
        return [Say(text=f"attempt {state.attempt}: {verdict.sentence}")]
    return [report(state, verdict, not_again(state), now_s)]


def not_again(state: JobState) -> str:
    """Say why nothing is done about a rank that the others have left behind."""
    how = "come to their end" if state.crashed_at_exit else "ended with exit code 0"
    return f"{state.ended_well} of {state.world_size} ranks have {how}, so the job is not started again"


def wake(state: JobState) -> list[Action]:
    """Have the attempt looked at again when the first of its times has come."""
    times = [at_s for at_s in (state.act_at_s, state.leftovers_at_s) if at_s is not None]
    state.deadline_at_s = min(times, default=None)
    return [WakeAt(state.deadline_at_s)] if state.deadline_at_s is not None else []


def report(
    state: JobState, verdict: TraceVerdict, reason: str, now_s: float, *, stands_still: bool = False
) -> RecordIncident:
    """Put a verdict on record about which nothing is done, or nothing yet."""
    since_s = state.suspected_at_s if state.suspected_at_s is not None else now_s
    return RecordIncident(
        attempt=state.attempt,
        symptom="slow" if verdict.kind == "slow" else "hang",
        onset_at_s=verdict.onset_s if verdict.onset_s is not None else since_s,
        detected_at_s=since_s if verdict.kind != "slow" else now_s,
        verdict=draft_of(verdict),
        action="report",
        reason=reason,
        act_at_s=state.act_at_s,
        stands_still=stands_still,
    )
