"""Suspension of a job that trains, so that its nodes can be checked: when it is worth it. Pure.

The job is not broken, so the cost is certain and the use is not: all nodes lose some minutes, and the work since the last save.
Only where another node can take over for one that is found at fault (also for a loss that jumped and stays there, which may be
the data's), once for the same sign on the same node within hours, and never twice within half an hour, whatever sensors say. What
it is not suspended for is told, and remembered against the node: the next failure there begins the ladder.
"""

from __future__ import annotations

import msgspec

from robust_run.health.ladder.types import FailureKind
from robust_run.launcher.core.attempts import end_attempt, failure_ending
from robust_run.launcher.core.ladder.ladder_state import ladder_state_of, remember
from robust_run.launcher.core.ladder.suspects import times_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action
from robust_run.report.summary import duration

#: So many different signs are remembered as checked, the newest.
MOST_CHECKED = 1000


def why_not(policy: CorePolicy, state: JobState, key: str, now_s: float, *, checks: bool = True) -> str:
    """Return why the job is not suspended for something, as a clause; empty: it may be. `key`: what was seen, and where.

    `checks`: nodes are to be checked; else one is to be replaced at once.
    """
    before = _reasons_before(policy, state, checks=checks)
    if before:
        return before
    times, suspended_at = times_of(policy), ladder_state_of(state).suspended_at
    since_s = now_s - suspended_at.get(key, float("-inf"))
    if since_s < times.again_after_s:
        return f"the nodes were checked for it {duration(since_s)} ago"
    since_s = now_s - max(suspended_at.values(), default=float("-inf"))
    if since_s < times.apart_s:
        return f"the job was suspended {duration(since_s)} ago"
    return ""


def _reasons_before(policy: CorePolicy, state: JobState, *, checks: bool) -> str:
    running = state.code.running
    if policy.diagnose == "never" and checks:
        return "--diagnose never"
    if not policy.many:
        return "the job has no other node"
    if policy.max_restarts == 0:
        return "--max-restarts is 0"
    if state.phase != "running" or state.ended_well:
        return "the attempt is about to end"
    if state.limit_is_near:
        return "the time limit is near"
    if state.code.pending or (running and state.code.records[running - 1].fate == "probation"):
        return "a new version of the code is the first suspect"
    if state.usable <= policy.fewest:
        return "no node can take over"
    return ""


def suspend(policy: CorePolicy, state: JobState, kind: FailureKind, sign: str, key: str, now_s: float) -> list[Action]:
    """End the attempt, so that the nodes are checked when it is over. Only if `why_not` says nothing."""
    mark(state, key, now_s)
    state.suspended_for, state.suspended_sign = kind, sign
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    return end_attempt(state, failure_ending(policy, state))


def mark(state: JobState, key: str, now_s: float) -> None:
    """Remember that a job that trained was ended for this."""
    ladder_state = ladder_state_of(state)
    kept = {name: at_s for name, at_s in ladder_state.suspended_at.items() if name != key}
    while len(kept) >= MOST_CHECKED:
        kept.pop(next(iter(kept)))
    remember(state, msgspec.structs.replace(ladder_state, suspended_at={**kept, key: now_s}))
