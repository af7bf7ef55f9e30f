"""Rollout of code versions in a job: captured, staged, due, proven, failed, taken back. Pure.

Which version runs is `core.code_ledger`'s to say; here it is what that means for attempts.
"""

from __future__ import annotations

from robust_run.launcher.core import code_ledger as ledger
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.core.attempts import end_attempt, failure_ending
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import CorePolicy, EndCause, JobState
from robust_run.launcher.model.actions import Action, Say
from robust_run.launcher.model.code_events import (
    CodeCaptured,
    CodeLacking,
    CodeVersion,
    NotFinite,
    RollbackAsked,
    StageCode,
    StepsSurvived,
    UpdateDue,
    UpdateRefused,
    UpdateStaged,
)
from robust_run.launcher.model.job import (
    VerdictDraft,
)

CodeEvent = (
    CodeCaptured | UpdateStaged | UpdateRefused | UpdateDue | RollbackAsked | StepsSurvived | NotFinite | CodeLacking
)


def take(policy: CorePolicy, state: JobState, event: CodeEvent, now_s: float) -> list[Action]:
    """Change the state by one event and return what is to be done."""
    match event:
        case CodeCaptured():
            is_first = not state.code.records
            state.code = ledger.captured(state.code, event.version, state.attempt)
            left_out = event.version.left_out
            return [Say(text=queries.left_words(left_out))] if left_out and is_first else []
        case UpdateStaged():
            return _staged(policy, state, event, now_s)
        case UpdateDue() if state.code.pending == event.number:
            version = state.code.records[event.number - 1].version
            return _put_in_place(
                policy, state, f"{queries.all_words(state.code, version)} has waited for long enough", now_s
            )
        case RollbackAsked():
            return _taken_back(policy, state, event, now_s)
        case StepsSurvived(attempt=attempt, node=node) if attempt == state.attempt and node in state.places:
            return _survived(policy, state, event, now_s)
        case NotFinite(attempt=attempt, rank=rank) if attempt == state.attempt:
            text = f"a parameter of rank {rank} is no finite number after step {event.step}"
            return _at_fault(policy, state, "nan", (rank,), "not_finite", text, now_s)
        case CodeLacking(attempt=attempt) if attempt == state.attempt:
            return _lacking(policy, state, event, now_s)
        case _:
            return []


def _staged(policy: CorePolicy, state: JobState, event: UpdateStaged, now_s: float) -> list[Action]:
    version, is_old = event.version, queries.is_pending(state.code, event.version)
    if not is_old and queries.why_not(state.code, version):
        return []
    state.code = ledger.staged(state.code, version, event.due_unix_s)
    name = queries.all_words(state.code, version)
    actions: list[Action] = [StageCode(tree=version.tree)] if version.tree and not is_old else []
    if not event.now:
        when = "at the next failure" if not event.due_unix_s else "at the next failure, or when its time has come"
        return [*actions, Say(text=f"{name} is staged and put in place {when}")]
    return actions + _put_in_place(policy, state, f"{name} is put in place", now_s)


def _put_in_place(policy: CorePolicy, state: JobState, text: str, now_s: float) -> list[Action]:
    """End the attempt that runs, if one does, so that the next one begins."""
    if not state.is_going:
        return []
    state.causes.append(EndCause(kind="asked", at_s=now_s, text=text))
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    return end_attempt(state, failure_ending(policy, state))


def _taken_back(policy: CorePolicy, state: JobState, event: RollbackAsked, now_s: float) -> list[Action]:
    target = queries.rollback_target(state.code, event.to)
    if target is None:
        return []
    ran_before = state.code.running
    why = f"taken back by {event.by}" + (f": {event.reason}" if event.reason else "")
    state.code = ledger.taken_back(state.code, event.to, why)
    if state.code.running == ran_before:  # only what was pending is gone
        return []
    return _put_in_place(policy, state, f"back to version {target.version.number}, {why}", now_s)


def _survived(policy: CorePolicy, state: JobState, event: StepsSurvived, now_s: float) -> list[Action]:
    version = queries.on_probation(state.code)
    state.code, too_slow = ledger.survived(state.code, event.node, event.steps, event.step_s, state.places)
    if too_slow:
        return _at_fault(policy, state, "slow", (), "slower_version", too_slow, now_s)
    if version is not None and queries.on_probation(state.code) is None:
        over = f"over {event.steps} steps" if event.steps else "by living on (it makes no steps that are counted)"
        return [
            Say(text=f"{queries.all_words(state.code, version)} has proven itself {over} and is trusted from now on")
        ]
    return []


def _lacking(policy: CorePolicy, state: JobState, event: CodeLacking, now_s: float) -> list[Action]:
    text = f"{name_of(state, event.node)} cannot put version {event.number} in place: {event.message}"
    if queries.on_probation(state.code) is not None:
        return _at_fault(policy, state, "code", (), "lacking_version", text, now_s)
    if not state.is_going:
        return []
    state.trouble = state.trouble or text
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    return end_attempt(state, failure_ending(policy, state))


def _at_fault(
    policy: CorePolicy, state: JobState, kind: str, ranks: tuple[int, ...], rule: str, text: str, now_s: float
) -> list[Action]:
    """End an attempt whose version is suspect and has just been found at fault. One that is trusted goes on."""
    if not state.is_going or queries.on_probation(state.code) is None:
        return []
    state.code_fault = VerdictDraft(
        kind=kind,  # type: ignore[arg-type]
        ranks=ranks,
        confidence="high",
        rule=rule,
        sentence=text,
        exit_code=1,
    )
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    return end_attempt(state, failure_ending(policy, state))


def roll_back(state: JobState, kind: str, sentence: str, *, heals: bool) -> CodeVersion | None:
    """Take back the version on probation if the end of its attempt is its doing; return it, or None.

    `heals`: the attempt ended for no fault of the program's.
    """
    version = queries.on_probation(state.code)
    if version is None or heals or not queries.is_blamed(state.code, kind):
        return None
    state.code = ledger.rolled_back(state.code, sentence)
    return version


def clause(state: JobState, version: CodeVersion) -> str:
    """Return what was taken back, with all that was merged into it, and to what, as the end of a sentence."""
    return f"{queries.all_words(state.code, version)} is rolled back to version {state.code.trusted}"


def proven(state: JobState) -> None:
    """The job has ended well, and so has the version that ran."""
    state.code = ledger.trusted(state.code, 0.0, "the job ended well with it")
