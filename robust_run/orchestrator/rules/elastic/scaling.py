"""A role with more members, or fewer. Pure.

Fewer: those with the highest indices are told to end in good order; one that pauses or waits is just not started. More: the next
indices, where there is room; who finds none waits, and fails nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.demand_state import Needs
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import Action, Asked, Changed, SayLine
from robust_run.orchestrator.rules.elastic.endings import SIGTERM, stop_member


def asked(role: RoleSpec, state: JobState, event: Asked, now_s: float, after_s: float) -> Iterator[Action]:
    """Somebody wants a role to have so many members. What is so already changes nothing."""
    wanted = min(max(event.members, role.fewest), role.most)
    if wanted == state.wanted[role.name]:
        return
    yield SayLine(text=f"{role.name} is to have {wanted} members" + (f", says {event.by}" if event.by else ""))
    yield from resized(role, state, wanted, now_s + after_s)


def resized(role: RoleSpec, state: JobState, wanted: int, quiet_until_s: float) -> Iterator[Action]:
    """Give a role so many members. What is known of its demand was of another number of them: it is measured anew then."""
    state.wanted[role.name] = wanted
    acts = state.needs[role.name].acts if role.name in state.needs else ()
    state.needs[role.name] = Needs(acts=acts, quiet_until_s=quiet_until_s)
    for member in state.of(role.name):
        if member.name.index >= wanted and member.standing in ("starting", "running"):
            yield from stop_member(member, SIGTERM)
        elif member.standing in ("waits", "held") or (member.standing == "pausing" and member.name.index >= wanted):
            member.standing = state.idle(member.name) if state.phase == "going" else "held"
            member.sentence = "" if member.standing == "held" else member.sentence
            yield Changed(member=member.name)
