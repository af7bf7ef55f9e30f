"""Questions about the code of roles. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.launcher.core import ledger_queries as queries
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import UP, JobState, Member
from robust_run.orchestrator.model.update_words import (
    UpdateMember,
)


def is_spreading(state: JobState, role: str) -> bool:
    """Whether members are still to be put on the version that runs: an update that comes meanwhile goes with it, at once."""
    code = state.codes.get(role)
    if code is None or not code.is_rolling:
        return False
    aim = code.ledger.pending or code.ledger.running
    return any(member.version != aim for member in alive_of(state.of(role)))


def under_way(state: JobState) -> Iterator[UpdateMember]:
    """Yield the orders of which it is not known yet what became: a leader that is started again gives them anew."""
    for member in state.members.values():
        code = state.codes.get(member.name.role)
        record = queries.record_of(code.ledger, member.ordered) if code is not None else None
        if record is not None and member.standing in UP and member.fate in ("", "pending", "probation"):
            yield UpdateMember(member=member.name, serial=member.serial, version=record.version, now=member.ordered_now)


def kept(state: JobState) -> Iterator[str]:
    """Yield the trees that members may be started with: what runs, what is to, and what a role goes back to."""
    for code in state.codes.values():
        for number in (code.ledger.running, code.ledger.pending, code.ledger.trusted):
            record = queries.record_of(code.ledger, number) if number else None
            if record is not None and record.version.tree:
                yield record.version.tree


def is_rolled_back(state: JobState, role: str, number: int) -> bool:
    """Whether a version was, so that nobody is started with it any more."""
    code = state.codes.get(role)
    record = queries.record_of(code.ledger, number) if code is not None else None
    return record is not None and record.fate == "rolled_back"


def begins_again(role: RoleSpec, state: JobState) -> str:
    """Return why all roles begin again for a version of this one (restart = "job"), once; empty: they do not."""
    code = state.codes.get(role.name)
    if code is None or not code.is_rolling or role.restart != "job" or state.phase != "going":
        return ""
    aim = code.ledger.pending or code.ledger.running
    code.is_rolling = False
    if all(member.standing not in UP or member.version == aim for member in state.of(role.name)):
        return ""
    return f"{role.name} is put on version {aim} of its code"


def alive_of(members: list[Member]) -> list[Member]:
    """Return those that run, or are about to."""
    return [member for member in members if member.standing not in ("done", "given_up", "held", "waits")]


def code_words(state: JobState, role: str) -> str:
    """Return how the newest version of a role stands; empty while it has the one that it began with."""
    code = state.codes.get(role)
    if code is None or len(code.ledger.records) < 2:
        return ""
    record = code.ledger.records[-1]
    number = record.version.number
    up = [member for member in state.of(role) if member.standing in UP]
    have = sum(member.version == number for member in up)
    fate = record.fate.replace("_", " ").replace("probation", "on probation")
    why = f": {record.why}" if record.why and record.fate != "trusted" else ""
    return f"version {number} {fate}, {have} of {len(up)} members run it{why}"
