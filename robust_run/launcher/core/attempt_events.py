"""Events of the running attempt: its store opens, its ranks exit, it ends on one node after the other."""

from __future__ import annotations

from robust_run.launcher.core import nodes
from robust_run.launcher.core.attempts import (
    end_attempt,
    failure_ending,
    start,
)
from robust_run.launcher.core.membership import awaits_resume, placement_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, EndAttempt, Say, WakeAt
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    HangSuspected,
    Inquired,
    RankExited,
    SpawnFailed,
    StoreLost,
    StoreOpened,
    WaitOver,
)
from robust_run.launcher.model.job import Progress
from robust_run.launcher.model.resume_events import NoResumePoint, ResumeChosen


def take(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action] | None:
    """Take in what happened to the attempt; None: that is not what the event is about, or not any more."""
    match event:
        case RankExited(attempt=attempt, rank=rank) if attempt == state.attempt and rank in state.live:
            return _rank_exited(policy, state, event, now_s)
        case RankExited(attempt=attempt) if attempt == state.attempt and state.phase == "opening":
            state.early_exits.append(event)
            return []
        case AttemptStarted(attempt=attempt, node=node) if attempt == state.attempt:
            state.started.add(node)
            state.nccl = event.nccl or state.nccl
            return _resume_known(policy, state, event, now_s) if awaits_resume(state, attempt) else []
        case ResumeChosen(attempt=attempt) if awaits_resume(state, attempt):
            return _resume_known(policy, state, event, now_s)
        case NoResumePoint(attempt=attempt, reason=reason) if awaits_resume(state, attempt):
            state.no_point = "now" if event.may_pass else "ever"
            return _trouble(state, reason, now_s)
        case AttemptEnded(attempt=attempt, node=node) if attempt == state.attempt and node in state.unended:
            return _attempt_ended(policy, state, event, now_s)
        case AttemptEnded(attempt=attempt, node=node) if attempt >= state.strays.get(node, attempt + 1):
            from robust_run.launcher.core.unknown_attempts import stray_ended

            return stray_ended(policy, state, node, now_s)
        case StoreOpened(attempt=attempt, node=node) if _is_awaited_store(state, attempt, node):
            return _store_opened(policy, state, event, now_s)
        case SpawnFailed(attempt=attempt, message=message) if attempt == state.attempt:
            return _trouble(state, message, now_s)
        case StoreLost(attempt=attempt, detail=detail) if attempt == state.attempt:
            return _trouble(state, detail, now_s)
        case HangSuspected(attempt=attempt) | WaitOver(attempt=attempt) | Inquired(attempt=attempt) if (
            attempt == state.attempt
        ):
            from robust_run.launcher.core.diagnosis import hang_response as traced

            return traced.take(policy, state, event, now_s)
        case _:
            return None


def _is_awaited_store(state: JobState, attempt: int, node: str) -> bool:
    return state.phase == "opening" and attempt == state.attempt and state.layout[0].node == node


def _store_opened(policy: CorePolicy, state: JobState, event: StoreOpened, now_s: float) -> list[Action]:
    state.address, state.port = event.address, event.port
    return _go(policy, state, now_s)


def _resume_known(
    policy: CorePolicy, state: JobState, event: ResumeChosen | AttemptStarted, now_s: float
) -> list[Action]:
    """It was chosen where the attempt starts from; or the journal has lost that, and a node that runs it says so."""
    from robust_run.launcher.core.resume import resuming

    if isinstance(event, AttemptStarted):
        return resuming.adopt(state, event) + _go(policy, state, now_s)
    return resuming.chosen(state, event, saves_plain_files=policy.saves_plain_files) + _go(policy, state, now_s)


def _go(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Have the workers started, once their store is open and it is known where they start from."""
    if not state.port or awaits_resume(state, state.attempt):
        return []
    state.phase = "running"
    state.live = set(range(state.world_size))
    early, state.early_exits = state.early_exits, []
    actions = start(state)
    for exit_ in early:
        if exit_.rank in state.live:
            actions += _rank_exited(policy, state, exit_, now_s)
    return actions


def _rank_exited(policy: CorePolicy, state: JobState, event: RankExited, now_s: float) -> list[Action]:
    state.live.discard(event.rank)
    if not state.is_going:
        return []
    if event.had_ended:  # the others may still save what they have: a rank that would have ended is nothing they need
        state.crashed_at_exit.add(event.rank)
    if event.exit_code == 0 or event.had_ended:
        if state.live:
            return [*_crashed_at_exit(state, event), *_left(state, now_s)]
        # Every rank is gone. If one failed before (suspecting), the verdict waits for the evidence; else all is well
        # and children that workers left behind get the same time to end as survivors of a failure.
        state.all_well = state.phase == "running" and not state.crashed_at_exit
        return end_attempt(state, EndAttempt(attempt=state.attempt, leftovers_s=policy.restart_grace_s))
    is_peer_error = event.finding is not None and event.finding.kind == "peer_connection"
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    if not is_peer_error or not state.live:
        return end_attempt(state, failure_ending(policy, state))
    if state.phase == "suspecting":
        return []
    state.phase, state.deadline_at_s = "suspecting", now_s + policy.patience_s
    return [WakeAt(state.deadline_at_s)]


def _crashed_at_exit(state: JobState, event: RankExited) -> list[Action]:
    if not event.had_ended or len(state.crashed_at_exit) > 1 or state.phase != "running":
        return []
    from robust_run.signals import describe_exit

    how = f"{describe_exit(event.exit_code)} when its program had ended"
    return [Say(text=f"attempt {state.attempt}: rank {event.rank} {how}; the other ranks go on")]


def _left(state: JobState, now_s: float) -> list[Action]:
    if state.phase != "running":
        return []
    from robust_run.launcher.core.resume import leftovers

    return leftovers.left(state, now_s)


def _trouble(state: JobState, message: str, now_s: float) -> list[Action]:
    if not state.is_going:
        return []
    state.trouble = state.trouble or message
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    return end_attempt(state, EndAttempt(attempt=state.attempt))


def _attempt_ended(policy: CorePolicy, state: JobState, event: AttemptEnded, now_s: float) -> list[Action]:
    state.unended.discard(event.node)
    state.evidence.extend(event.ranks)
    if event.damage is not None:
        from robust_run.launcher.core.resume import resuming

        resuming.damaged(state, event)
    state.progress = _merged(state.progress, event.progress)
    placement = placement_of(state, event.node)
    if placement is not None and state.live:
        state.live.difference_update(range(placement.first_rank, placement.first_rank + placement.nproc))
    actions: list[Action] = []
    nodes.note_own_end(state, event, now_s)
    if state.is_going:
        actions = end_attempt(state, failure_ending(policy, state))
    return actions


def _merged(one: Progress, other: Progress) -> Progress:
    steps = [each.steps for each in (one, other) if each.steps is not None]
    return Progress(
        lived_s=max(one.lived_s, other.lived_s),
        steps=max(steps, default=None),
        files_advanced=one.files_advanced or other.files_advanced,
    )
