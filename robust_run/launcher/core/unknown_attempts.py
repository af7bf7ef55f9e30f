"""Nodes that may run an attempt the journal does not know: it ends before attempts that they were told of.

A full disk or a deleted run directory takes records away; the agents are the witnesses. What they may run ends, and the next
attempt gets a number that none of them has heard.
"""

from __future__ import annotations

from robust_run.launcher.core.attempts import end_attempt, is_held, try_to_gather
from robust_run.launcher.core.membership import placement_of, ranks_of
from robust_run.launcher.core.state import CorePolicy, EndCause, JobState
from robust_run.launcher.model.actions import Action, EndAttempt
from robust_run.launcher.model.job import Progress

SIGTERM = 15


def strayed(policy: CorePolicy, state: JobState, node: str, attempt: int, now_s: float) -> list[Action]:
    """Have a node that comes with an attempt which is not on record, or not as its own, end it; others are none of this."""
    is_same_number = attempt == state.attempt > state.told_of and node not in state.places  # of another attempt
    is_proof = attempt > max(state.attempt, state.told_of) or is_same_number
    may_run_it = node not in state.unended and (is_held(state, now_s) or node in state.strays)
    if not (is_proof or attempt > state.attempt or may_run_it):
        return []
    placement = placement_of(state, node) if node in state.unended else None
    if placement is not None:
        state.live.difference_update(ranks_of(placement))
    state.unended.discard(node)
    state.strays[node] = attempt
    actions = _fall_behind(policy, state, attempt, now_s) if is_proof else []
    if state.phase == "stopping" and state.ending is not None and not state.ending.signal:
        return [*actions, EndAttempt(attempt=attempt, only=(node,))]
    return [*actions, EndAttempt(attempt=attempt, signal=SIGTERM, grace_s=policy.restart_grace_s, only=(node,))]


def _fall_behind(policy: CorePolicy, state: JobState, attempt: int, now_s: float) -> list[Action]:
    """The records end before this attempt: what they say to be going on is not."""
    state.told_of = attempt
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    was = state.phase
    if was in ("new", "gathering", "diagnosing"):
        state.phase, state.deadline_at_s, state.ending = "ending", None, None
        state.evidence, state.causes, state.live = [], [], set()
        state.progress, state.trouble, state.all_well = Progress(), "", False
        state.detected_at_s = now_s
    state.causes = [cause for cause in state.causes if cause.kind != "behind"]
    text = (
        f"the journal ends before attempt {attempt}, which nodes run: a new attempt is started "
        "(was the disk of the run directory full, or the directory deleted?)"
    )
    state.causes.append(EndCause(kind="behind", at_s=now_s, text=text))
    if was not in ("opening", "running", "suspecting"):
        return []
    return end_attempt(state, EndAttempt(attempt=state.attempt, signal=SIGTERM, grace_s=policy.restart_grace_s))


def stray_ended(policy: CorePolicy, state: JobState, node: str, now_s: float) -> list[Action]:
    """Nothing unknown runs on a node any more: a job that gathers nodes goes on if it was the last."""
    state.strays.pop(node, None)
    return try_to_gather(policy, state, now_s) if state.is_quiet and state.phase == "gathering" else []


def end_strays_now(state: JobState) -> list[Action]:
    """Let them wait for nothing any more."""
    return [EndAttempt(attempt=attempt, only=(node,)) for node, attempt in state.strays.items()]
