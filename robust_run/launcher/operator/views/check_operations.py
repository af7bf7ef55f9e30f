"""Admission of node checks: which nodes may be checked now, and why others may not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from robust_run.launcher.core.state import JobState, Member
from robust_run.launcher.operator.views.operations import OperationRefusedError, listed, match, near, one_line


def choose(
    state: JobState, names: Sequence[str], busy: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the agents to check, their names, and who is left out and why; `busy`: those that are being checked.

    Raises RefusedError for a named node that trains: checks beside training only measure training. Without names, all that
    nothing runs on are taken.
    """
    if state.is_over:
        raise OperationRefusedError(409, "the job is over; type robust check on the node itself")
    by_name = {member.info.name: member for member in state.members.values() if member.present}
    wanted = [_named(by_name, name) for name in names] if names else list(by_name.values())
    why = {member.info.name: _why_not(state, member, busy) for member in wanted}
    refused = [f"{name} {reason}" for name, reason in why.items() if reason]
    if refused and names:
        raise OperationRefusedError(409, f"{'; '.join(refused[:4])}: {_instead(state, by_name, busy)}")
    chosen = [member for member in wanted if not why[member.info.name]]
    if not chosen:
        raise OperationRefusedError(409, f"no node is idle: {'; '.join(refused[:4]) or 'none is here'}")
    return tuple(m.info.id for m in chosen), tuple(m.info.name for m in chosen), tuple(refused)


def _named(by_name: dict[str, Member], name: str) -> Member:
    found = by_name.get(match(name, by_name))
    if found is None:
        alike = near(name, by_name)
        hint = f"did you mean {' or '.join(alike)}?" if alike else "robust nodes lists them"
        raise OperationRefusedError(404, f"no node {one_line(name)!r} is here; {hint}")
    return found


def _why_not(state: JobState, member: Member, busy: Collection[str]) -> str:
    if member.info.id in busy:
        return "is being checked already"
    if state.is_on_ladder and member.info.id in state.places:
        return "is being looked at by the ladder"
    trains = state.is_in_world(member.info.id) or member.info.id in state.unended
    return f"trains in attempt {state.attempt}" if trains else ""


def _instead(state: JobState, by_name: dict[str, Member], busy: Collection[str]) -> str:
    idle = sorted(name for name, member in by_name.items() if not _why_not(state, member, busy))
    return f"checks beside training only measure training; idle are {listed(idle) or 'none'}"
