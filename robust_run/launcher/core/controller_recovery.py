"""After a controller restart: reset deadlines, resend orders that nodes may have missed.

Imported by a job of several nodes, and by one whose controller was restarted.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.core.attempts import begin, start_order
from robust_run.launcher.core.membership import awaits_resume
from robust_run.launcher.core.restart import from_now
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, OpenStore, WakeAt
from robust_run.launcher.model.node_events import ControllerResumed


def repeat(state: JobState, node: str) -> list[Action]:
    """Tell a node again what it may have missed; it ignores what it has heard."""
    if node not in state.unended:
        return []
    if state.phase == "opening":
        return [*_look_again(state, node), *_open_again(state, node)]
    if state.ending is not None:
        return [msgspec.structs.replace(state.ending, only=(node,))]
    order: list[Action] = [start_order(state, only=node)] if node not in state.started else []
    if node in state.memory_told:
        from robust_run.launcher.core.resume import peers

        order += peers.again(state, node)
    if state.memory_strides != (1, 1):
        from robust_run.launcher.core.resume import strides

        order += strides.again(state, node)
    return order


def _open_again(state: JobState, node: str) -> list[Action]:
    return [OpenStore(attempt=state.attempt, node=node)] if state.layout[0].node == node else []


def _look_again(state: JobState, node: str) -> list[Action]:
    if not awaits_resume(state, state.attempt):
        return []
    from robust_run.launcher.core.resume import resuming

    return [resuming.look_again(state, node)]


def resumed(policy: CorePolicy, state: JobState, event: ControllerResumed, now_s: float) -> list[Action]:
    """Begin the waits anew: this clock is another. Nodes are told what they may have missed when they return."""
    state.term = max(state.term, event.term)
    state.is_inquiring = False
    if state.health.recent or state.health.evicted:
        from robust_run.launcher.core.diagnosis import health_record

        health_record.resumed(state, now_s)
    state.hold_until_s = now_s + event.hold_s if event.hold_s else None
    state.detected_at_s = None if state.detected_at_s is None else now_s
    state.failed_at_s = state.pause_until_s = None
    state.trail = from_now(state.trail, now_s)
    if state.phase == "new":
        state.first_needs = event.needs
    if state.phase in ("new", "gathering"):
        return begin(policy, state, now_s)
    if state.phase == "diagnosing":
        from robust_run.launcher.core.diagnosis import failure as diagnosis

        return diagnosis.begin_again(policy, state)
    if state.phase == "suspecting":
        state.deadline_at_s = now_s + policy.patience_s
        return [WakeAt(state.deadline_at_s)]
    if state.phase == "running":
        return _wait_anew(policy, state, now_s)
    return []


def _wait_anew(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Look soon at waits that were known and at ranks that were left behind: the times are of another clock."""
    at_s = now_s + policy.hang_after_s
    if state.leftovers_at_s is not None or state.looks_at_leftovers:
        state.last_left_at_s, state.leftovers_at_s, state.looks_at_leftovers = now_s, at_s, False
    if state.act_at_s is not None:
        state.act_at_s = at_s
    if state.act_at_s is None and state.leftovers_at_s is None:
        return []
    state.deadline_at_s = at_s
    return [WakeAt(at_s)]
