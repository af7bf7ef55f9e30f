"""Members for which no node is left. Pure.

Where nodes come back by themselves (a machine that is started again, a pod), a member waits for one for ever. Slurm gives
a job no node back: there a job that cannot go on is ended in a while, so that it can be requeued. What looks the same and is
healthy: room that others use, which is waited for; and a role that has `fewest` members up, which goes on with those.
"""

from __future__ import annotations

from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.state import UP, JobState, Member
from robust_run.orchestrator.rules.placement import needs, why_never


def note(state: JobState, member: Member, never: str, now_s: float) -> float | None:
    """Take note of a member without room; return when to look again, None where that is no matter of time or is known."""
    if not never or state.patience_s is None:
        member.short_since_s = None
        return None
    if member.short_since_s is not None:
        return None
    member.short_since_s = now_s
    return until_s(state, member)


def until_s(state: JobState, member: Member) -> float:
    """Return how long a member is waited for that no node is left for."""
    return (member.short_since_s or 0.0) + (state.patience_s or 0.0)


def ends_job(spec: RolesSpec, state: JobState, now_s: float) -> str:
    """Return why the job cannot go on; empty if it can, or if it is too early to say."""
    if state.patience_s is None:
        return ""
    for role in spec.roles:
        members = state.of(role.name)[: state.wanted[role.name]]
        short = [member for member in members if member.standing == "waits" and member.short_since_s is not None]
        over = [each for each in short if now_s >= until_s(state, each)]
        able = sum(member.standing in (*UP, "done") for member in members)
        never = why_never(role, state.nodes)
        if over and able < role.fewest and never:
            return f"{over[0].name} needs {needs(role)}, and {never}; no node comes"
    return ""
