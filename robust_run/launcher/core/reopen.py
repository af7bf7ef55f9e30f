"""Requeue of a job by its scheduler: on other nodes, with nothing of the old ones left."""

from __future__ import annotations

from robust_run.launcher.core.attempts import forget_waits
from robust_run.launcher.core.restart import Trail
from robust_run.launcher.core.state import JobState


def reopen(state: JobState, restart: int) -> None:
    """Forget what ran and why it ended; keep what holds on: attempts' numbers, evictions, versions of the code."""
    for member in state.members.values():
        if member.present:
            member.present, member.gone, member.reason = False, "left", "the job was ended and started again"
    state.restart, state.limit_is_near = restart, False
    state.usable, state.unable, state.told = 0, {}, set()
    state.layout, state.places = (), {}
    state.attempt = max(state.attempt, state.told_of)
    state.unended, state.strays, state.live, state.started = set(), {}, set(), set()
    state.early_exits, state.evidence, state.causes = [], [], []
    state.crashed_at_exit = set()
    state.stop_signal, state.stopped_by, state.finish, state.ending = None, "", None, None
    state.is_inquiring, state.suspected_at_s, state.traced, state.is_traced_end = False, None, None, False
    state.all_well, state.trouble, state.awaits_post_mortem = False, "", False
    forget_waits(state)
    state.detected_at_s = state.deadline_at_s = state.hold_until_s = None
    state.trail = Trail()
    state.memory_at, state.memory_peers, state.memory_keeps, state.memory_told = {}, {}, {}, {}
    state.memory_needs, state.memory_strides = {}, (1, 1)
    state.failed_at_s = state.reached_step = state.pause_until_s = None
