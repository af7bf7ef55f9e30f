"""Which members of a role are started now, and where. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.words import (
    Action,
    Changed,
    SayLine,
    StartMember,
    WakeAt,
)
from robust_run.orchestrator.rules import update_rules as updates
from robust_run.orchestrator.rules.placement import needs, occupy, place, why_never
from robust_run.orchestrator.rules.shortage import note


def start_role(spec: RolesSpec, state: JobState, role: RoleSpec, now_s: float) -> Iterator[Action]:
    """Start the members of a role that are to run, if what it depends on is ready and there is room."""
    if not all(state.is_ready(spec.role(name)) for name in role.depends_on):
        return
    for member in state.of(role.name)[: state.wanted[role.name]]:
        due = member.standing == "pausing" and now_s >= member.until_s
        if not (due or member.standing in ("waits", "held")):
            continue
        where = place(role, member, state.nodes)
        if where is None:
            never = why_never(role, state.nodes)
            yield from _no_room(role, member, never)
            if (at_s := note(state, member, never, now_s)) is not None:
                yield WakeAt(at_s=at_s)
            continue
        occupy(role, member, state.nodes, where)
        code = updates.start_version(state, member)
        member.standing, member.runs_since_s, member.sentence = "starting", None, ""
        member.short_since_s = None
        member.serial += 1
        member.attempt = 0
        yield StartMember(member=member.name, serial=member.serial, nodes=where[0], devices=where[1], code=code)
        yield Changed(member=member.name)


def _no_room(role: RoleSpec, member: Member, never: str) -> Iterator[Action]:
    """It waits; people are told once. `never`: why the nodes that there are will not do."""
    member.standing = "waits"
    sentence = f"{member.name} waits for {needs(role)}: {never or 'others use it'}"
    if sentence != member.sentence:
        member.sentence = sentence
        yield SayLine(text=sentence)
