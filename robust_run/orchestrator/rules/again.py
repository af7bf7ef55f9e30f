"""A job that is started again in its run directory: when Slurm has requeued it, say. Pure.

Nothing of an earlier start runs any more, and none of its nodes need be there. What stays are names: members have the serials and
generations that follow, so that nothing an earlier start left is taken for theirs; numbers that were asked for; what has done its
work. Everything else begins again, members that were given up too. Queues are as they were: they are not the core's.

Another machine's clock may say something else, by days: what a state says of moments is moved to it.
"""

from __future__ import annotations

import msgspec

from robust_run.orchestrator.model.demand_state import Needs
from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.update_words import RoleCode

MOMENTS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    JobState: ("last_s",),
    Member: ("runs_since_s", "until_s", "up_s", "short_since_s", "asked_s"),
    RoleCode: ("due_s", "wake_s"),
    Needs: ("quiet_until_s",),
}
"""All that is a moment of the clock of who leads. 0 and None: there is none."""


def another_clock(state: JobState, now_s: float) -> None:
    """Go on by another clock: no time has passed since what happened last, and what is to come is as far away as it was."""
    by_s = now_s - state.last_s
    for each in (state, *state.members.values(), *state.codes.values(), *state.needs.values()):
        for name in MOMENTS[type(each)]:
            if at_s := getattr(each, name):
                setattr(each, name, at_s + by_s)


def begin_again(state: JobState, start: str) -> None:
    """Change a state to that before the job began; of the first start there is nothing to change."""
    state.start, state.phase = start, "new"
    state.code, state.sentence, state.is_short, state.job_restarts = 0, "", False, 0
    state.nodes.clear()
    for code in state.codes.values():
        code.wake_s = 0.0
    for member in state.members.values():
        member.standing = "done" if member.is_finished else "held"
        member.ready, member.is_ready, member.failed = {}, False, 0
        member.runs_since_s, member.until_s, member.short_since_s = None, 0.0, None
        member.code, member.sentence = (member.code, member.sentence) if member.is_finished else (None, "")
