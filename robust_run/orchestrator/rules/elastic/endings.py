"""Members and jobs that are told to end. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.words import Action, Changed, StopMember

SIGTERM = 15


def end_job(state: JobState, code: int, sentence: str, signal: int) -> Iterator[Action]:
    """End the job: the first reason counts, and members are told again."""
    again = state.phase == "ending"
    if not again:
        state.phase, state.code, state.sentence = "ending", code, sentence
    yield from stop_all(state, signal, again=again)


def stop_all(state: JobState, signal: int, *, again: bool = False) -> Iterator[Action]:
    """Tell all members to end; `again`: also those that were told before."""
    for member in state.members.values():
        if member.standing in ("starting", "running") or (again and member.standing == "stopping"):
            yield from stop_member(member, signal)
        elif member.standing in ("waits", "pausing"):
            member.standing = "held"
            yield Changed(member=member.name)


def stop_member(member: Member, signal: int) -> Iterator[Action]:
    """Tell a member to end; others cannot rely on it any more."""
    member.standing, member.is_ready = "stopping", False
    yield StopMember(member=member.name, serial=member.serial, signal=signal)
    yield Changed(member=member.name)
