"""Standstill of an attempt in which a wait is only reported: when it begins to count, and when ranks go on. Pure.

What is known: on which nodes ranks wait for too long, and that they do not any more; agents tell both, as they look at the ranks.
A wait alone is no standstill: ranks also wait for one that evaluates or writes a checkpoint, which is work. So it is one if the
evidence of all ranks was looked at, none of those at fault is at work, and some rank still waits when that is put on record.
It is over when no node has such a wait: what comes after it, also at the same place, is another one.
"""

from __future__ import annotations

from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import StandstillOver
from robust_run.launcher.model.events import HangSuspected, WaitOver
from robust_run.tracer.types import TraceVerdict


def waits(state: JobState, event: HangSuspected) -> None:
    """Ranks of a node wait for too long. One that was over when an agent says it again is over."""
    if event.number > state.waits_over.get(event.node, 0):
        state.waits[event.node] = event.number


def begins(state: JobState, verdict: TraceVerdict) -> bool:
    """Whether no rank trains from the onset of what is about to be reported; notes it."""
    is_idle = not verdict.at_work and not verdict.only_told
    is_one = verdict.kind != "slow" and is_idle and not state.ended_well and bool(state.waits)
    state.stands_still = state.stands_still or is_one
    return is_one


def over(state: JobState, event: WaitOver) -> list[StandstillOver]:
    """Ranks of a node go on."""
    state.waits_over[event.node] = max(event.number, state.waits_over.get(event.node, 0))
    if state.waits.get(event.node, 0) <= event.number:
        state.waits.pop(event.node, None)
    if state.waits or not state.stands_still:
        return []
    state.stands_still = False
    return [StandstillOver(attempt=state.attempt, at_s=event.at_s)]
